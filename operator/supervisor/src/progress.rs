//! The file in which the child reports its progress: the step, the step of the last saved
//! checkpoint, and words `key=value`, separated by spaces.
//!
//! A file never blocks the child, and needs no reader: `echo 1200 > "$LOCKSTEP_PROGRESS"`.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lockstep_supervisor_protocol::{MAX_PROGRESS, Text};

use crate::files;
use lockstep_supervisor::machine::Event;

/// File name in the supervisor's folder.
const FILE: &str = "progress";

pub fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

pub struct ProgressFile {
    path: PathBuf,
    last: Option<(Written, Option<SystemTime>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    step: u64,
    checkpoint: Option<u64>,
    words: Text<MAX_PROGRESS>,
}

impl ProgressFile {
    pub fn new(folder: &Path) -> Self {
        Self {
            path: path(folder),
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

    /// Returns changed progress, with `repeated` also progress that was written again. Invalid content
    /// is ignored, because the child may be writing.
    pub fn read_change(&mut self, repeated: bool) -> Option<Event> {
        let at = fs::symlink_metadata(&self.path)
            .and_then(|file| file.modified())
            .ok();
        let written = parse(&files::read(&self.path, MAX_PROGRESS as u64 + 1)?)?;
        let last = self.last.replace((written.clone(), at));
        let same = |(content, before)| content == written && !(repeated && before != at);
        if last.is_some_and(same) {
            return None;
        }
        Some(Event::Progress {
            step: written.step,
            checkpoint: written.checkpoint,
            words: written.words,
        })
    }
}

/// The agent validates the words, so a later agent can understand further words.
fn parse(mut content: &[u8]) -> Option<Written> {
    if content.len() > MAX_PROGRESS {
        // The last word may be cut.
        let end = content.iter().rposition(u8::is_ascii_whitespace)?;
        content = &content[..end];
    }
    let text = String::from_utf8_lossy(content);
    let is_pair = |word: &&str| word.contains('=');
    let mut words = text.split_ascii_whitespace().peekable();
    let step = words.next()?.parse().ok()?;
    let checkpoint = words.next_if(|word| !is_pair(word)).map(str::parse);
    let pairs: Vec<&str> = words.filter(|w| is_pair(w) && w.is_ascii()).collect();
    Some(Written {
        step,
        checkpoint: checkpoint.transpose().ok()?,
        words: Text::cut(pairs.join(" ")),
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn written(step: u64, checkpoint: Option<u64>) -> Event {
        with_words(step, checkpoint, "")
    }

    fn with_words(step: u64, checkpoint: Option<u64>, words: &str) -> Event {
        Event::Progress {
            step,
            checkpoint,
            words: Text::cut(words),
        }
    }

    #[test]
    fn a_progress_report_of_a_child_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        assert_eq!(file.read_change(false), None, "nothing was told");
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
            ("1 total=9", Some(with_words(1, None, "total=9"))),
            ("1 2 3", Some(written(1, Some(2)))),
            ("1 2 a=1\tb c=x\n", Some(with_words(1, Some(2), "a=1 c=x"))),
            ("1 2 a=2", Some(with_words(1, Some(2), "a=2"))),
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.read_change(false), event, "{text}");
        }
        file.clear().unwrap();
        file.clear().unwrap();
        assert_eq!(file.read_change(false), None);
        fs::write(file.path(), "0").unwrap();
        assert_eq!(
            file.read_change(false),
            Some(written(0, None)),
            "written by the next child"
        );
    }

    #[test]
    fn what_makes_no_sense_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        for text in ["", "-1", "step 7", "7 last", "18446744073709551616"] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.read_change(false), None, "{text:?}");
        }
        fs::write(file.path(), "9".repeat(5000)).unwrap();
        assert_eq!(file.read_change(false), None, "longer than any two numbers");
    }

    #[test]
    fn a_word_that_ends_beyond_512_bytes_is_ignored() {
        let line = format!("7 5 a=1 {} b=2", "x".repeat(500));
        assert_eq!(line.find("b=2").map(|at| at + 2), Some(511));
        let words = |text: &str| parse(text.as_bytes()).unwrap().words.to_string();
        assert_eq!(words(&line), "a=1 b=2");
        assert_eq!(words(&format!("{line}5")), "a=1");
        assert_eq!(words(&format!("{line} c=3")), "a=1 b=2");
    }

    proptest! {
        /// Any bytes after step and checkpoint leave both as they are.
        #[test]
        fn step_and_checkpoint_survive_any_tail(step: u64, saved: u64, tail in vec(any::<u8>(), 0..700)) {
            let line = [format!("{step} {saved} ").as_bytes(), &tail].concat();
            let kept = &line[..line.len().min(MAX_PROGRESS + 1)];
            let written = parse(kept).unwrap();
            prop_assert_eq!((written.step, written.checkpoint), (step, Some(saved)));
        }
    }

    #[test]
    fn nothing_but_a_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ProgressFile::new(folder.path());
        let other = folder.path().join("other");
        fs::write(&other, "7").unwrap();
        std::os::unix::fs::symlink(&other, file.path()).unwrap();
        assert_eq!(file.read_change(false), None, "a link");
        file.clear().unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            file.path(),
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        assert_eq!(
            file.read_change(false),
            None,
            "a pipe, which nobody writes to"
        );
        file.clear().unwrap();
        fs::create_dir(file.path()).unwrap();
        assert_eq!(file.read_change(false), None, "a folder");
    }
}
