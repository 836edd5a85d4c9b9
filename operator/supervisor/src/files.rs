//! Files in the supervisor's folder. The child may run as the same user, so the functions follow no
//! symlink and never block on a file that the child put there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
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

pub fn read(path: &Path, longest: u64) -> Option<Vec<u8>> {
    read_from(path, longest, |_| 0)
}

pub fn read_end(path: &Path, longest: u64) -> Option<Vec<u8>> {
    read_from(path, longest, |length| length.saturating_sub(longest))
}

fn read_from(path: &Path, longest: u64, start: impl Fn(u64) -> u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.seek(SeekFrom::Start(start(metadata.len()))).ok()?;
    let mut content = Vec::new();
    file.take(longest).read_to_end(&mut content).ok()?;
    Some(content)
}

pub fn empty(path: &Path) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(path, flags, Mode::empty()).map(File::from) {
        Ok(file) if file.metadata()?.is_file() => file.set_len(0),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{empty, read, read_end, replace};

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

    #[test]
    fn the_end_of_a_file_is_read_and_the_file_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        assert_eq!(read_end(&file, 4), None);
        empty(&file).unwrap();
        assert!(!file.exists());
        fs::write(&file, "abcdef").unwrap();
        assert_eq!(read_end(&file, 4).unwrap(), b"cdef");
        assert_eq!(read_end(&file, 40).unwrap(), b"abcdef");
        empty(&file).unwrap();
        assert_eq!(read_end(&file, 4).unwrap(), b"");
    }
}
