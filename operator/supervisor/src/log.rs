//! The supervisor's own lines in the container's log. The child writes to the log directly.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

/// `PIPE_BUF` of Linux: a pipe accepts a line of this length as a whole or not at all.
const LONGEST: usize = 4096;

/// The log, if it is a pipe that can be opened again. `O_NONBLOCK` belongs to the open file
/// description, and the child shares the description of file descriptor 2.
static PIPE: LazyLock<Option<File>> = LazyLock::new(|| {
    let kind = FileType::from_raw_mode(fstat(io::stderr()).ok()?.st_mode);
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe: Option<OwnedFd> = (kind == FileType::Fifo)
        .then(|| open("/proc/self/fd/2", flags, Mode::empty()).ok())
        .flatten();
    pipe.map(File::from)
});

/// Dropped lines that the log has not reported yet.
static DROPPED: AtomicU32 = AtomicU32::new(0);

/// Writes one line, or drops it if the log is full, for example while the container runtime is
/// down. Control characters in the text cannot forge a line.
pub fn log_line(line: &str) {
    let dropped = DROPPED.load(Ordering::Relaxed);
    if dropped > 0
        && write(&format!(
            "lines dropped because the log was full: {dropped}"
        ))
        .is_ok()
    {
        DROPPED.store(0, Ordering::Relaxed);
    }
    if write(line).is_err() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn write(line: &str) -> io::Result<()> {
    let line = line.replace(char::is_control, " ");
    let mut bytes = format!("lockstep-run: {line}").into_bytes();
    bytes.truncate(LONGEST - 1);
    bytes.push(b'\n');
    if let Some(mut pipe) = PIPE.as_ref() {
        return pipe.write_all(&bytes);
    }
    let stderr = io::stderr();
    let mut ready = [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default()))? == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    stderr.lock().write_all(&bytes)
}
