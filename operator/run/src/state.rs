//! The file by which probes learn what the supervisor does.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use lockstep_run::machine::Visible;

/// File name in the supervisor's folder.
const FILE: &str = "state";

/// Replaces the file as a whole: a probe reads the old state or the new one. Nothing that the child
/// may have put in the way is written through, since the child can be of another user.
pub fn write(folder: &Path, visible: Visible) -> io::Result<()> {
    let next = folder.join(".state.next");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(&next)?.write_all(print(visible).as_bytes())?;
    fs::rename(next, folder.join(FILE))
}

/// What the supervisor wrote last; none if there is no such file, or none that makes sense.
pub fn read(folder: &Path) -> Option<Visible> {
    parse(&fs::read_to_string(folder.join(FILE)).ok()?)
}

fn print(visible: Visible) -> String {
    match visible {
        Visible::Starting => "starting\n".to_owned(),
        Visible::Held(since) => format!("held {}\n", since.as_millis()),
        Visible::Running => "running\n".to_owned(),
    }
}

fn parse(text: &str) -> Option<Visible> {
    let mut words = text.split_whitespace();
    match (words.next()?, words.next()) {
        ("starting", None) => Some(Visible::Starting),
        ("held", Some(millis)) => Some(Visible::Held(Duration::from_millis(millis.parse().ok()?))),
        ("running", None) => Some(Visible::Running),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::{parse, print, read, write};
    use lockstep_run::machine::Visible;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), None, "no supervisor yet");
        for visible in [
            Visible::Starting,
            Visible::Held(Duration::from_millis(86_400_123)),
            Visible::Running,
        ] {
            write(folder.path(), visible).unwrap();
            assert_eq!(read(folder.path()), Some(visible), "{}", print(visible));
        }
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join(".state.next")).unwrap();
        write(folder.path(), Visible::Running).unwrap();
        assert_eq!(fs::read_to_string(other).unwrap(), "untouched");
        assert_eq!(read(folder.path()), Some(Visible::Running));
    }

    #[test]
    fn what_makes_no_sense_is_no_state() {
        for text in ["", "held", "held soon", "running now", "held -1", "gone"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
