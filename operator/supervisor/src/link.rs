//! The socket that the agent connects to.
//!
//! The agent reaches the socket through the pod's folder on the node, so the supervisor listens. A
//! restarted agent opens a new connection. The last welcomed connection is the current one.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_supervisor_protocol::{
    FrameError, FrameReader, FromAgent, FromSupervisor, Message, SOCKET, VERSIONS,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::log::log_line;
use lockstep_supervisor::machine::Moment;

/// Most connections without `Welcome`. A further connection displaces the oldest.
const UNWELCOMED: usize = 4;
/// Most unsent bytes for an agent that does not read.
const UNREAD: usize = 256 * 1024;
/// Bytes of one read, and most reads in one turn. The next turn reads the rest.
const READ: usize = 4096;
const READS: usize = 32;
/// Time limit for the answer to `Hello`.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Interval of checks for the socket's file while no agent is connected.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// First and longest pause between two attempts to listen.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub enum LinkEvent {
    Came,
    Went,
    Received(FromAgent),
}

pub struct Link {
    path: PathBuf,
    hello: Vec<u8>,
    listener: Option<Listener>,
    /// Time of the next attempt to listen, or of the next check for the socket's file.
    listen_at: Moment,
    retry: Duration,
    unwelcomed: Vec<Connection>,
    agent: Option<Connection>,
}

struct Listener {
    socket: UnixListener,
    inode: u64,
}

struct Connection {
    stream: UnixStream,
    reader: FrameReader,
    unsent: Vec<u8>,
    /// Version that the agent chose in `Welcome`.
    version: u16,
    since: Moment,
}

#[derive(Debug)]
enum Over {
    Closed,
    Broken(io::Error),
    Frame(FrameError),
    NotWelcomed,
    Version(u16),
    Unread,
}

impl Link {
    pub fn new(folder: &Path, hello: &FromSupervisor, now: Moment) -> Self {
        Self {
            path: folder.join(SOCKET),
            hello: hello.encode(),
            listener: None,
            listen_at: now,
            retry: RETRY,
            unwelcomed: Vec::new(),
            agent: None,
        }
    }

    /// Does all work that does not block.
    pub fn turn(&mut self, now: Moment) -> Vec<LinkEvent> {
        self.keep_listening(now);
        self.accept(now);
        let mut events = Vec::new();
        // Before `welcome`, so that frames of the previous agent are not lost.
        self.converse(&mut events);
        self.welcome(now, &mut events);
        events
    }

    /// Sends a message to the connected agent. Later turns send what does not fit into the socket's
    /// buffer.
    pub fn send(&mut self, message: &FromSupervisor) {
        if let Some(agent) = &mut self.agent {
            agent
                .unsent
                .extend(message.encode_for(agent.version).into_iter().flatten());
            // The next turn reports errors.
            let _ = agent.flush();
        }
    }

    /// Blocks until everything is sent, or until the time limit. Sent bytes outlive this process.
    pub fn flush(&mut self, clock: fn() -> Moment, at_most: Duration) {
        let end = clock() + at_most;
        while let Some(agent) = &mut self.agent
            && agent.flush().is_ok()
            && !agent.unsent.is_empty()
        {
            let Some(left) = end.checked_sub(clock()).filter(|left| !left.is_zero()) else {
                return;
            };
            let mut fds = [PollFd::new(&agent.stream, PollFlags::OUT)];
            let _ = poll(&mut fds, left.try_into().ok().as_ref());
        }
    }

    pub fn next_deadline(&self) -> Option<Moment> {
        let listen = self.agent.is_none().then_some(self.listen_at);
        let handshake = self
            .unwelcomed
            .iter()
            .map(|connection| connection.since + HANDSHAKE)
            .min();
        [listen, handshake].into_iter().flatten().min()
    }

    pub fn fds(&self) -> Vec<PollFd<'_>> {
        let listener = self
            .listener
            .iter()
            .map(|l| PollFd::from_borrowed_fd(l.socket.as_fd(), PollFlags::IN));
        let connections = self.unwelcomed.iter().chain(&self.agent).map(|connection| {
            let out = if connection.unsent.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), PollFlags::IN | out)
        });
        listener.chain(connections).collect()
    }

    /// Listens, and listens again if the socket's file was removed. No check is needed while an
    /// agent is connected.
    fn keep_listening(&mut self, now: Moment) {
        if self.agent.is_some() || now < self.listen_at {
            return;
        }
        let exists = self
            .listener
            .as_ref()
            .is_some_and(|l| fs::metadata(&self.path).is_ok_and(|m| m.ino() == l.inode));
        if exists {
            self.listen_at = now + CHECK_EVERY;
            return;
        }
        match Listener::bind(&self.path) {
            Ok(listener) => {
                self.listener = Some(listener);
                self.retry = RETRY;
                self.listen_at = now + CHECK_EVERY;
            }
            Err(error) => {
                log_line(&format!(
                    "cannot listen at {}: {error}",
                    self.path.display()
                ));
                self.listener = None;
                self.listen_at = now + self.retry;
                self.retry = (self.retry * 2).min(RETRY_MAX);
            }
        }
    }

    fn accept(&mut self, now: Moment) {
        while let Some(listener) = &self.listener {
            match listener.socket.accept() {
                Ok((stream, _)) => {
                    let connection = Connection::new(stream, self.hello.clone(), now);
                    self.unwelcomed.extend(connection);
                    if self.unwelcomed.len() > UNWELCOMED {
                        self.unwelcomed.remove(0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    log_line(&format!("cannot accept a connection: {error}"));
                    self.listener = None;
                    self.listen_at = now + self.retry;
                    self.retry = (self.retry * 2).min(RETRY_MAX);
                }
            }
        }
    }

    fn converse(&mut self, events: &mut Vec<LinkEvent>) {
        if let Some(agent) = &mut self.agent
            && let Err(over) = agent.converse(events)
        {
            over.log();
            self.agent = None;
            events.push(LinkEvent::Went);
        }
    }

    /// Handles handshakes. A welcomed connection replaces the current one.
    fn welcome(&mut self, now: Moment, events: &mut Vec<LinkEvent>) {
        for mut connection in std::mem::take(&mut self.unwelcomed) {
            match connection.handshake(now) {
                Ok(true) => {
                    self.agent = Some(connection);
                    events.push(LinkEvent::Came);
                    // Frames that arrived with `Welcome` cause no further wake-up.
                    self.converse(events);
                }
                Ok(false) => self.unwelcomed.push(connection),
                Err(over) => over.log(),
            }
        }
    }
}

impl Listener {
    /// Binds under a temporary name, then renames the file to the name that the agent opens. All
    /// users may connect, because the agent may lack CAP_DAC_OVERRIDE. The folder belongs to the
    /// pod.
    fn bind(path: &Path) -> io::Result<Self> {
        let next = path.with_extension("next");
        match fs::remove_file(&next) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(&next)?;
        socket.set_nonblocking(true)?;
        fs::set_permissions(&next, Permissions::from_mode(0o666))?;
        fs::rename(&next, path)?;
        Ok(Self {
            socket,
            inode: fs::metadata(path)?.ino(),
        })
    }
}

impl Connection {
    fn new(stream: UnixStream, hello: Vec<u8>, now: Moment) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            reader: FrameReader::default(),
            unsent: hello,
            version: VERSIONS.oldest,
            since: now,
        })
    }

    fn handshake(&mut self, now: Moment) -> Result<bool, Over> {
        self.flush()?;
        let closed = self.receive()?;
        match self.reader.next_frame().map_err(Over::Frame)? {
            Some(FromAgent::Welcome { version }) if VERSIONS.contains(version) => {
                self.version = version;
                Ok(true)
            }
            Some(FromAgent::Welcome { version }) => Err(Over::Version(version)),
            Some(_) => Err(Over::NotWelcomed),
            None if closed => Err(Over::Closed),
            None if now >= self.since + HANDSHAKE => Err(Over::NotWelcomed),
            None => Ok(false),
        }
    }

    fn converse(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), Over> {
        let closed = self.receive();
        // Frames before an error or the end of the stream are valid.
        while let Some(order) = self.reader.next_frame().map_err(Over::Frame)? {
            events.push(LinkEvent::Received(order));
        }
        if closed? {
            return Err(Over::Closed);
        }
        self.flush()?;
        if self.unsent.len() > UNREAD {
            Err(Over::Unread)
        } else {
            Ok(())
        }
    }

    fn receive(&mut self) -> Result<bool, Over> {
        let mut bytes = [0; READ];
        for _ in 0..READS {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(true),
                Ok(read) => self.reader.push(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Over::Broken(error)),
            }
        }
        Ok(false)
    }

    fn flush(&mut self) -> Result<(), Over> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => {
                    self.unsent.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Over::Broken(error)),
            }
        }
        Ok(())
    }
}

impl Over {
    /// Logs the cause, except for a closed connection: the machine logs that.
    fn log(self) {
        match self {
            Self::Closed => {}
            Self::Broken(error) => log_line(&format!("connection to the agent: {error}")),
            Self::Frame(error) => log_line(&format!("connection closed: {error}")),
            Self::NotWelcomed => log_line("connection closed: no welcome came"),
            Self::Version(version) => log_line(&format!(
                "connection closed: version {version} is not known"
            )),
            Self::Unread => log_line("connection closed: the agent does not read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use lockstep_supervisor_protocol::{
        FromAgent, FromSupervisor, Message, SOCKET, Text, VERSIONS,
    };
    use tempfile::TempDir;

    use super::{HANDSHAKE, Link, LinkEvent};

    fn link() -> (TempDir, Link) {
        let folder = tempfile::tempdir().unwrap();
        let hello = FromSupervisor::Hello {
            versions: VERSIONS,
            pod_uid: Text::default(),
            start_id: 1,
        };
        let mut link = Link::new(folder.path(), &hello, Duration::ZERO);
        assert!(link.turn(Duration::ZERO).is_empty());
        (folder, link)
    }

    fn connect(folder: &TempDir, says: &[FromAgent]) -> UnixStream {
        let mut stream = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
        for message in says {
            stream.write_all(&message.encode()).unwrap();
        }
        stream
    }

    #[test]
    fn what_an_agent_said_before_another_took_its_place_is_not_lost() {
        const WELCOME: FromAgent = FromAgent::Welcome { version: 1 };
        let (folder, mut link) = link();
        let mut first = connect(&folder, &[WELCOME]);
        assert!(matches!(link.turn(Duration::ZERO)[..], [LinkEvent::Came]));
        first
            .write_all(&FromAgent::Hold { attempt: 2 }.encode())
            .unwrap();
        let _second = connect(&folder, &[WELCOME, FromAgent::Hold { attempt: 3 }]);
        let events = link.turn(Duration::ZERO);
        let [
            LinkEvent::Received(first),
            LinkEvent::Came,
            LinkEvent::Received(second),
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(
            [first, second],
            [
                &FromAgent::Hold { attempt: 2 },
                &FromAgent::Hold { attempt: 3 }
            ]
        );
    }

    #[test]
    fn a_connection_that_is_not_welcomed_in_time_is_closed() {
        let (folder, mut link) = link();
        let _silent = connect(&folder, &[]);
        link.turn(Duration::ZERO);
        assert_eq!(link.unwelcomed.len(), 1);
        link.turn(HANDSHAKE);
        assert_eq!(link.unwelcomed.len(), 0);
    }
}
