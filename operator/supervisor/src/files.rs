//! Files in the supervisor's folder. The child may run as the same user, so the functions follow no
//! symlink and never block on a file that the child put there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Replaces a file atomically: a reader sees the old or the new content.
pub fn replace(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let next = folder.join(format!(".{name}.next"));
    match fs::remove_file(&next) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(&next)?.write_all(content)?;
    fs::rename(next, folder.join(name))
}

/// Reads at most `longest` bytes of a regular file.
pub fn read(path: &Path, longest: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    let mut content = Vec::new();
    let regular = file.metadata().ok()?.is_file();
    (regular && file.take(longest).read_to_end(&mut content).is_ok()).then_some(content)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{read, replace};

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "untouched").unwrap();
        for name in [".state.next", "state"] {
            symlink(&other, folder.path().join(name)).unwrap();
        }
        assert_eq!(read(&folder.path().join("state"), 100), None);
        replace(folder.path(), "state", b"new").unwrap();
        assert_eq!(fs::read_to_string(other).unwrap(), "untouched");
        let read = |longest| read(&folder.path().join("state"), longest).unwrap();
        assert_eq!((read(100), read(2)), (b"new".to_vec(), b"ne".to_vec()));
    }
}
