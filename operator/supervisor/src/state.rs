//! The file with the supervisor's state for probes.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::files;
use lockstep_supervisor::machine::Visible;

/// File name in the supervisor's folder.
const FILE: &str = "state";

pub fn write(folder: &Path, visible: Visible) -> io::Result<()> {
    files::replace(folder, FILE, print(visible).as_bytes())
}

/// Reads the last state; `None` if the file is missing or invalid.
pub fn read(folder: &Path) -> Option<Visible> {
    parse(&fs::read_to_string(folder.join(FILE)).ok()?)
}

fn print(visible: Visible) -> String {
    match visible {
        Visible::Starting => "starting\n".to_owned(),
        Visible::Held(since) => format!("held {}\n", since.as_millis()),
        Visible::Running(since) => format!("running {}\n", since.as_millis()),
    }
}

fn parse(text: &str) -> Option<Visible> {
    let mut words = text.split_whitespace();
    let (word, since) = (words.next()?, words.next());
    let since = since.map(|millis| Some(Duration::from_millis(millis.parse().ok()?)));
    match (word, since) {
        ("starting", None) => Some(Visible::Starting),
        ("held", Some(since)) => since.map(Visible::Held),
        ("running", Some(since)) => since.map(Visible::Running),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse, print, read, write};
    use lockstep_supervisor::machine::Visible;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), None, "no supervisor yet");
        for visible in [
            Visible::Starting,
            Visible::Held(Duration::from_millis(86_400_123)),
            Visible::Running(Duration::from_millis(7)),
        ] {
            write(folder.path(), visible).unwrap();
            assert_eq!(read(folder.path()), Some(visible), "{}", print(visible));
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_state() {
        for text in [
            "",
            "held",
            "held soon",
            "running",
            "running now",
            "held -1",
            "gone",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
