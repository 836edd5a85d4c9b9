use super::{CheckLevel, Diagnosis};
use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View};

impl View for Diagnosis {
    fn screen(&self, options: &RenderOptions) -> String {
        let mut table = Table::new(&["RESULT", "CHECK", "FOUND", "READ"]);
        for check in &self.checks {
            let (word, tone) = match check.level {
                CheckLevel::Ok => ("ok", Tone::Good),
                CheckLevel::Warn => ("warn", Tone::Busy),
                CheckLevel::Fail => ("FAIL", Tone::Bad),
            };
            let page = match check.level {
                CheckLevel::Ok => "",
                _ => check.page,
            };
            table.row([
                Cell::new(word, tone),
                check.check.into(),
                check.message.clone().into(),
                page.into(),
            ]);
        }
        table.render(options)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
