//! Checkpoints: one small text file, replaced atomically.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::state::State;

const FILE: &str = "checkpoint";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The interval has passed.
    Interval,
    Stop,
    End,
}

impl Occasion {
    fn word(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::Stop => "stop",
            Self::End => "end",
        }
    }
}

/// Writes the state as `OCCASION STEP PARAMETER...` in place of the last one.
pub fn save(folder: &Path, state: &State, occasion: Occasion) -> Result<()> {
    let words: Vec<String> = state.to_words().iter().map(ToString::to_string).collect();
    let text = format!("{} {}\n", occasion.word(), words.join(" "));
    replace(&folder.join(FILE), &text)
        .with_context(|| format!("write a checkpoint to {}", folder.display()))
}

/// Reads the last checkpoint. Without one, training starts from the beginning.
pub fn load(folder: &Path) -> Result<State> {
    let path = folder.join(FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        text => text,
    };
    let what = || format!("read the checkpoint {}", path.display());
    let text = text.with_context(what)?;
    let words: Result<Vec<u64>, _> = text.split_whitespace().skip(1).map(str::parse).collect();
    State::from_words(&words.with_context(what)?).with_context(what)
}

/// Replaces a file atomically: a reader, or the next attempt after a kill, sees the old or the new
/// content.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut draft = OsString::from(path);
    draft.push(".new");
    File::create(&draft)?.write_all(text.as_bytes())?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_loaded_and_a_folder_without_a_checkpoint_is_the_beginning() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()).unwrap(), State::default());
        let mut state = State::default();
        state.apply(&state.gradient(0).collect::<Vec<_>>());
        save(folder.path(), &state, Occasion::Stop).unwrap();
        assert_eq!(load(folder.path()).unwrap(), state);
    }

    #[test]
    fn a_damaged_checkpoint_is_an_error_and_not_a_beginning() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "interval 20 1 2\n").unwrap();
        assert!(load(folder.path()).is_err());
    }
}
