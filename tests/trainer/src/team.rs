//! The members of one attempt, connected to rank 0, and the two things that they do together.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::settings::Settings;

/// Time between two attempts to meet.
const PAUSE: Duration = Duration::from_millis(10);
/// One minute: a member whose peers do not come ends, and whoever started it decides.
const ATTEMPTS: u32 = 6000;
/// A greeting is sent as soon as the connection is there; who is silent is no member.
const GREETING: Duration = Duration::from_secs(5);
/// A member that is silent for so long is lost. Longer than any step of its peers.
const SILENCE: Duration = Duration::from_secs(30);

/// Why members have not met.
#[derive(Debug, Error)]
pub enum Unmet {
    /// Somebody did not come, or went.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A member of another attempt came to rank 0.
    #[error("rank {rank} is of attempt {theirs}, and this is attempt {own}")]
    Mixed {
        /// Who came.
        rank: u64,
        /// Its attempt.
        theirs: u64,
        /// The attempt of rank 0.
        own: u64,
    },
}

/// This member's connections: of rank 0 to all others, of the others to rank 0.
#[derive(Debug)]
pub struct Team(Role);

#[derive(Debug)]
enum Role {
    Leader(Vec<TcpStream>),
    Follower(TcpStream),
}

impl Team {
    /// Waits until all members are there; every one gets the words that rank 0 brings.
    pub fn meet(settings: &Settings, words: Vec<u64>) -> Result<(Self, Vec<u64>), Unmet> {
        if settings.leads() {
            let mut team = Self(Role::Leader(gather(settings)?));
            let words = team.broadcast(words)?;
            return Ok((team, words));
        }
        // A leader that goes away before all have come was one of an earlier attempt.
        Ok(patiently(|| {
            let mut team = Self(Role::Follower(join(settings)?));
            let words = team.broadcast(words.clone())?;
            Ok((team, words))
        })?)
    }

    /// Gives the words of rank 0 to everybody; those of the others only say how many to expect.
    fn broadcast(&mut self, words: Vec<u64>) -> io::Result<Vec<u64>> {
        match &mut self.0 {
            Role::Leader(followers) => {
                followers.iter_mut().try_for_each(|f| send(f, &words))?;
                Ok(words)
            }
            Role::Follower(leader) => receive(leader, words.len()),
        }
    }

    /// Adds up everybody's words, one by one, and gives the sums to everybody.
    pub fn all_reduce(&mut self, mut words: Vec<u64>) -> io::Result<Vec<u64>> {
        match &mut self.0 {
            Role::Leader(followers) => {
                for follower in followers {
                    let theirs = receive(follower, words.len())?;
                    for (sum, word) in words.iter_mut().zip(theirs) {
                        *sum = sum.wrapping_add(word);
                    }
                }
            }
            Role::Follower(leader) => send(leader, &words)?,
        }
        self.broadcast(words)
    }
}

/// Rank 0: listens until every other rank has come. The listener is closed then, so that a member
/// of the next attempt finds nobody here and tries again.
fn gather(settings: &Settings) -> Result<Vec<TcpStream>, Unmet> {
    let listener =
        patiently(|| TcpListener::bind((settings.master.0.as_str(), settings.master.1)))?;
    listener.set_nonblocking(true)?;
    let mut followers: Vec<Option<TcpStream>> = (1..settings.world).map(|_| None).collect();
    while followers.iter().any(Option::is_none) {
        let (mut stream, _) = patiently(|| listener.accept())?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        // A stranger, or a member that died meanwhile, keeps nobody from meeting.
        let greeting = receive(&mut stream, 3);
        let Ok([rank, world, attempt]) = greeting.as_deref() else {
            continue;
        };
        // A member without supervisor does not know its attempt.
        let known = *attempt > 0 && settings.attempt > 0;
        if known && *attempt != settings.attempt {
            return Err(Unmet::Mixed {
                rank: *rank,
                theirs: *attempt,
                own: settings.attempt,
            });
        }
        let place = usize::try_from(*rank)
            .ok()
            .and_then(|rank| followers.get_mut(rank.checked_sub(1)?));
        if let (Some(place), true) = (place, *world == settings.world as u64) {
            prepare(&stream)?;
            *place = Some(stream);
        }
    }
    Ok(followers.into_iter().flatten().collect())
}

/// The others: connect to rank 0 and say who they are.
fn join(settings: &Settings) -> io::Result<TcpStream> {
    let (host, port) = &settings.master;
    let address = (host.as_str(), *port)
        .to_socket_addrs()?
        .next()
        .ok_or(ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(&address, GREETING)?;
    prepare(&stream)?;
    let own = [
        settings.rank as u64,
        settings.world as u64,
        settings.attempt,
    ];
    send(&mut stream, &own)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

/// Tries until it works; the last error when it never does.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        if let Ok(done) = attempt() {
            return Ok(done);
        }
        thread::sleep(PAUSE);
    }
    attempt()
}

fn send(stream: &mut TcpStream, words: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    stream.write_all(&bytes)
}

fn receive(stream: &mut TcpStream, words: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; words * size_of::<u64>()];
    stream.read_exact(&mut bytes)?;
    Ok(bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .collect())
}
