//! A supervisor as a real process, and an agent connected to it.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of a test fails the test by panicking"
)]

use std::fs::{self, File};
use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockstep_supervisor_protocol::{
    ChildExit, ExitReason, FrameReader, FromAgent, FromSupervisor, Message, ProgressLimits,
    Release, Rendezvous, SOCKET, Text,
};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep-run");
/// Environment variable of a supervisor and its descendants, unique per test.
const MARK: &str = "LOCKSTEP_TEST_MARK";
/// Time limit of a failed test. No passing test waits for it.
const PATIENCE: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(2);

const FILLING: &[u8] = b"#";

static NEXT: AtomicU32 = AtomicU32::new(0);

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        if holds() {
            return;
        }
        thread::sleep(LOOK);
    }
    panic!("not within {PATIENCE:?}: {what}");
}

pub struct Run {
    command: Vec<String>,
    process: Child,
    folder: TempDir,
    mark: String,
}

impl Run {
    pub fn script(options: &[&str], script: &str) -> Self {
        Self::new(&[], options, &["sh", "-c", script])
    }

    /// Supervises a shell script whose log is a full pipe.
    pub fn with_full_log(script: &str) -> (Self, FullPipe) {
        let (reader, writer) = pipe().unwrap();
        // A separate file description from that of the supervisor and its child.
        let mut fill = File::options()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
            .unwrap();
        let error = loop {
            if let Err(error) = fill.write(FILLING) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let run = Self::start(&[], &[], &["sh", "-c", script], Some(writer.into()));
        (run, FullPipe(reader))
    }

    /// Supervises a command in its own folder. `through` is a command that starts the supervisor.
    pub fn new(through: &[&str], options: &[&str], command: &[&str]) -> Self {
        Self::start(through, options, command, None)
    }

    fn start(through: &[&str], options: &[&str], command: &[&str], log: Option<Stdio>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mark = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let command: Vec<String> = [
            through,
            &[
                PROGRAM,
                "exec",
                "--dir",
                folder.path().to_str().unwrap(),
                "--clean-shm",
                "none",
            ],
        ]
        .concat()
        .into_iter()
        .chain(options.iter().copied())
        .chain(["--"])
        .chain(command.iter().copied())
        .map(str::to_owned)
        .collect();
        Self {
            process: start(&command, folder.path(), &mark, log),
            command,
            folder,
            mark,
        }
    }

    /// Kills the whole container, and starts the next one as the kubelet does.
    pub fn restarts(&mut self) {
        self.kill();
        self.process = start(&self.command, self.folder.path(), &self.mark, None);
    }

    fn kill(&mut self) {
        // Both fail only for ended processes.
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Repeated, because processes may have forked.
        until("nothing of this test is left", || {
            let left = marked(&self.mark);
            for pid in &left {
                let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
            }
            left.is_empty()
        });
    }

    /// Connects as the node's agent and sends `Welcome`.
    pub fn agent(&self) -> Agent {
        self.agent_of_version(1)
    }

    pub fn agent_of_version(&self, version: u16) -> Agent {
        let mut agent = self.stranger();
        let FromSupervisor::Hello { start_id, .. } = agent.hears() else {
            panic!("no hello");
        };
        agent.start_id = start_id;
        agent.says(&FromAgent::Welcome { version });
        agent
    }

    /// Connects without sending anything.
    pub fn stranger(&self) -> Agent {
        let path = self.folder.path().join(SOCKET);
        let mut stream = None;
        until("the supervisor listens", || {
            stream = UnixStream::connect(&path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Agent {
            stream,
            reader: FrameReader::default(),
            start_id: 0,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for a file from the script, and returns its text without the last line break.
    pub fn file(&self, name: &str) -> String {
        let path = self.path(name);
        let mut text = String::new();
        until(&format!("{name} is written"), || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim_end().to_owned()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Descendants of this supervisor, at any place in the process tree.
    pub fn descendants(&self) -> Vec<i32> {
        let own = self.process.id() as i32;
        marked(&self.mark)
            .into_iter()
            .filter(|pid| *pid != own)
            .collect()
    }

    pub fn has_exited(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        until("the supervisor exits", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Dead children of the supervisor that are not reaped.
    pub fn zombies(&self) -> usize {
        let parent = format!(" Z {} ", self.process.id());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|e| {
                fs::read_to_string(e.path().join("stat")).is_ok_and(|stat| stat.contains(&parent))
            })
            .count()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct FullPipe(PipeReader);

impl FullPipe {
    /// Makes space for lines.
    pub fn read_some(&mut self) {
        let read = self.0.read(&mut [0; 4096]).unwrap();
        assert_ne!(read, 0, "the log has ended");
    }

    /// Reads until the log contains a text, and returns the log without the filling.
    pub fn read_until(&mut self, text: &str) -> String {
        let mut log = String::new();
        let mut bytes = [0; 4096];
        while !log.contains(text) {
            let read = self.0.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "the log ends without {text:?}: {log}");
            let bytes = bytes[..read].iter().filter(|byte| !FILLING.contains(byte));
            log.extend(bytes.map(|byte| char::from(*byte)));
        }
        log
    }
}

fn start(command: &[String], folder: &Path, mark: &str, log: Option<Stdio>) -> Child {
    let log = log.unwrap_or_else(|| File::create(folder.join("log")).unwrap().into());
    Command::new(&command[0])
        .args(&command[1..])
        .env(MARK, mark)
        .env("PET_RDZV_ID", "uid")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let has = |environment: &[u8]| {
        environment
            .split(|b| *b == 0)
            .any(|variable| variable == wanted.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| fs::read(format!("/proc/{pid}/environ")).is_ok_and(|e| has(&e)))
        .collect()
}

pub struct Agent {
    stream: UnixStream,
    reader: FrameReader,
    pub start_id: u64,
}

impl Agent {
    pub fn says(&mut self, message: &FromAgent) {
        self.stream.write_all(&message.encode()).unwrap();
    }

    pub fn writes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn hears(&mut self) -> FromSupervisor {
        self.next()
            .unwrap_or_else(|| panic!("the supervisor has closed the connection"))
    }

    /// The next frame; `None` if the connection is closed.
    pub fn next(&mut self) -> Option<FromSupervisor> {
        let mut bytes = [0; 512];
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                read => self.reader.push(&bytes[..read.unwrap()]),
            }
        }
    }

    pub fn hold(&mut self, attempt: u64) {
        self.says(&FromAgent::Hold { attempt });
    }

    pub fn hears_arrival(&mut self, attempt: u64) {
        assert_eq!(self.hears(), FromSupervisor::Arrived { attempt });
    }

    /// Orders the attempt, awaits the arrival, releases it and awaits the start.
    pub fn starts(&mut self, attempt: u64) {
        self.hold(attempt);
        while self.hears() != (FromSupervisor::Arrived { attempt }) {}
        self.says(&release(attempt));
        assert_eq!(self.hears(), FromSupervisor::Started { attempt });
    }

    /// Awaits the child's exit, and returns its time in milliseconds since 1970.
    pub fn hears_time_of_exit(&mut self) -> u64 {
        match self.hears() {
            FromSupervisor::Exited { time, .. } => time,
            other => panic!("{other:?} instead of an exit"),
        }
    }

    /// Awaits the child's exit, and returns its code and reason.
    pub fn hears_exit(&mut self, attempt: u64) -> (u8, ExitReason) {
        let heard = self.hears();
        let FromSupervisor::Exited {
            exit:
                ChildExit {
                    attempt: ended,
                    code,
                    reason,
                    ..
                },
            ..
        } = heard
        else {
            panic!("{heard:?} instead of an exit");
        };
        assert_eq!(ended, attempt);
        (code, reason)
    }
}

pub fn release(attempt: u64) -> FromAgent {
    release_with(attempt, None)
}

pub fn release_with(attempt: u64, progress: Option<ProgressLimits>) -> FromAgent {
    let coordinator = Rendezvous {
        ip: [10, 0, 0, 7].into(),
        port: 29_500 + attempt as u16,
    };
    FromAgent::Release(Release {
        attempt,
        coordinator: Some(coordinator),
        world: 4,
        rank: None,
        peers: Text::cut("workers-0:0-3"),
        progress,
        checkpoint: None,
    })
}
