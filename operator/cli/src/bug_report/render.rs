use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use lockstep_api::words::count;
use serde::Serialize;

use crate::version::CLIENT;
use crate::view::table::{Cell, Table, Tone};
use crate::view::{RenderOptions, View};

/// The snapshot in an archive.
pub const SNAPSHOT: &str = "cluster.json.zst";
const LEFT_OUT: &str = "Left out: environment, commands, arguments, annotations, volumes, addresses, fields that this program does not know";

/// What an archive contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BugReportSummary {
    pub archive: String,
    pub bytes: usize,
    /// File with the names of the pseudonyms.
    pub names: String,
    /// Number of objects by kind.
    pub objects: Vec<(String, usize)>,
    /// Nodes and gangs in the snapshot.
    pub snapshot: Option<[usize; 2]>,
    /// Number of logs, if they were requested.
    pub logs: Option<usize>,
    pub pseudonyms: bool,
    /// What could not be read.
    pub missing: Vec<String>,
}

impl BugReportSummary {
    /// What is in the archive, what is not, and why.
    pub(super) fn readme(&self, now: DateTime<Utc>) -> String {
        let at = now.to_rfc3339_opts(SecondsFormat::Secs, true);
        let mut out = format!("Lockstep bug report of {at}, by kubectl-lockstep {CLIENT}\n\n");
        out.push_str("versions.json       versions of the components\n");
        out.push_str("doctor.json         checks of the installation\n");
        out.push_str("configuration.yaml  scheduler, scheduling, nodeHealth and agents of the manager, with defaults\n");
        if self.snapshot.is_some() {
            let _ = writeln!(
                out,
                "{SNAPSHOT}    for `whatif --snapshot` and `dashboard --snapshot`"
            );
        }
        for (kind, number) in &self.objects {
            let _ = writeln!(out, "objects/{kind}.json: {number}");
        }
        let _ = writeln!(out, "\n{}", self.left_out());
        let names = if self.pseudonyms {
            "Names of objects and images, and values of labels, are pseudonyms. Keys of labels, names of resources and UIDs are real. A name that none of the objects has stays in messages."
        } else {
            "Names are real (--names)."
        };
        let _ = writeln!(out, "{names}");
        for line in &self.missing {
            let _ = writeln!(out, "Not read: {line}");
        }
        out
    }

    fn left_out(&self) -> String {
        match self.logs {
            None => format!("{LEFT_OUT}; output of programs (--logs adds logs)"),
            Some(logs) => format!(
                "{LEFT_OUT}\n{} and the messages of ended containers are as programs wrote them, with pseudonyms for known names only: read them before you share the archive",
                count(logs, "log")
            ),
        }
    }
}

impl View for BugReportSummary {
    fn screen(&self, options: &RenderOptions) -> String {
        let mut table = Table::new(&["KIND", "OBJECTS"]);
        for (kind, number) in &self.objects {
            table.row([Cell::from(kind.clone()), number.to_string().into()]);
        }
        let mut out = table.render(options);
        let snapshot = match self.snapshot {
            Some([nodes, gangs]) => {
                format!(
                    "with a snapshot of {} and {}",
                    count(nodes, "node"),
                    count(gangs, "gang")
                )
            }
            None => "without a snapshot, because nodes were not read".to_owned(),
        };
        let size = self.bytes.div_ceil(1000);
        let _ = writeln!(out, "\n{}: {size} kB, {snapshot}", self.archive);
        if self.pseudonyms {
            let _ = writeln!(
                out,
                "{}: the names of its pseudonyms, for you only: do not attach this file",
                self.names
            );
        } else {
            out.push_str(&Tone::Busy.paint("Names are real (--names)\n", options));
        }
        let _ = writeln!(out, "{}", self.left_out());
        for line in &self.missing {
            out.push_str(&Tone::Busy.paint(&format!("Not read: {line}\n"), options));
        }
        out.push_str(
            "Next: read README.txt in the archive, and attach the archive to the bug report\n",
        );
        out
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
