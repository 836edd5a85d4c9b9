//! Signals that wake up `poll`.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_supervisor_protocol::PASSED_SIGNALS;
use rustix::process::Signal;
use signal_hook::{flag, low_level::pipe};

use lockstep_supervisor::machine::SignalNumber;

pub struct Signals {
    wakes: UnixStream,
    flags: Vec<(SignalNumber, Arc<AtomicBool>)>,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let (wakes, wake) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        pipe::register(Signal::CHILD.as_raw(), wake.try_clone()?)?;
        let mut flags = Vec::new();
        for (_, signal) in PASSED_SIGNALS {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag first: it is then set when `poll` wakes up.
            flag::register(signal.into(), flag.clone())?;
            pipe::register(signal.into(), wake.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Self { wakes, flags })
    }

    /// Signals since the last call, without SIGCHLD: the caller reaps after each wake-up.
    pub fn take(&mut self) -> Vec<SignalNumber> {
        let mut bytes = [0; 64];
        // Drained before the flags are read: a signal in between wakes `poll` again.
        while self.wakes.read(&mut bytes).is_ok_and(|read| read > 0) {}
        let arrived = self
            .flags
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        arrived.map(|(signal, _)| *signal).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}
