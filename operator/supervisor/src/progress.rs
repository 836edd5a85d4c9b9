//! The file in which the child reports its progress: the step and, after a space, the step of the
//! last saved checkpoint, both decimal.
//!
//! A file never blocks the child, and needs no reader: `echo 1200 > "$LOCKSTEP_PROGRESS"`.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files;
use lockstep_supervisor::machine::Event;

/// File name in the supervisor's folder.
const FILE: &str = "progress";
/// Two numbers of 20 digits, a space and a line break, rounded up.
const LONGEST: u64 = 48;

pub struct ProgressFile {
    path: PathBuf,
    last: Option<Written>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Written {
    step: u64,
    checkpoint: Option<u64>,
}

impl ProgressFile {
    pub fn new(folder: &Path) -> Self {
        Self {
            path: folder.join(FILE),
            last: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn clear(&mut self) -> io::Result<()> {
        self.last = None;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns changed progress. Invalid content is ignored, because the child may be writing.
    pub fn read_change(&mut self) -> Option<Event> {
        let written = parse(&read(&self.path)?)?;
        if self.last.replace(written) == Some(written) {
            return None;
        }
        Some(Event::Progress {
            step: written.step,
            checkpoint: written.checkpoint,
        })
    }
}

fn read(path: &Path) -> Option<String> {
    String::from_utf8(files::read(path, LONGEST)?).ok()
}

fn parse(text: &str) -> Option<Written> {
    let mut words = text.split_ascii_whitespace();
    let step = words.next()?.parse().ok()?;
    let checkpoint = words.next().map(str::parse).transpose().ok()?;
    words
        .next()
        .is_none()
        .then_some(Written { step, checkpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(step: u64, checkpoint: Option<u64>) -> Event {
        Event::Progress { step, checkpoint }
    }

    #[test]
    fn a_progress_report_of_a_child_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        assert_eq!(file.read_change(), None, "nothing was told");
        for (text, event) in [
            ("1200", Some(written(1200, None))),
            ("1200\n", None),
            ("1201 1200\n", Some(written(1201, Some(1200)))),
            ("1201 12", Some(written(1201, Some(12)))),
            (
                "18446744073709551615 18446744073709551615\n",
                Some(written(u64::MAX, Some(u64::MAX))),
            ),
            ("0", Some(written(0, None))),
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.read_change(), event, "{text}");
        }
        file.clear().unwrap();
        file.clear().unwrap();
        assert_eq!(file.read_change(), None);
        fs::write(file.path(), "0").unwrap();
        assert_eq!(
            file.read_change(),
            Some(written(0, None)),
            "written by the next child"
        );
    }

    #[test]
    fn what_makes_no_sense_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        for text in [
            "",
            "-1",
            "step 7",
            "7 last",
            "1 2 3",
            "18446744073709551616",
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.read_change(), None, "{text:?}");
        }
        fs::write(file.path(), "9".repeat(5000)).unwrap();
        assert_eq!(file.read_change(), None, "longer than any two numbers");
    }

    #[test]
    fn nothing_but_a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        let other = folder.path().join("other");
        fs::write(&other, "7").unwrap();
        std::os::unix::fs::symlink(&other, file.path()).unwrap();
        assert_eq!(file.read_change(), None, "a link");
        file.clear().unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            file.path(),
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        assert_eq!(file.read_change(), None, "a pipe, which nobody writes to");
        file.clear().unwrap();
        fs::create_dir(file.path()).unwrap();
        assert_eq!(file.read_change(), None, "a folder");
    }
}
