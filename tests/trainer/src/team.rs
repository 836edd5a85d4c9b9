//! The members of one attempt, connected to rank 0, and their two collective operations.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::settings::Settings;

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
/// One minute. Without its peers, a member then exits.
const ATTEMPTS: u32 = 6000;
/// Longest wait for a greeting. A silent connection is no member.
const GREETING: Duration = Duration::from_secs(5);
/// A member that is silent for this time is lost. Longer than any step.
const SILENCE: Duration = Duration::from_secs(30);

/// Why members are not connected.
#[derive(Debug, Error)]
pub enum Unmet {
    /// A member did not connect, or was lost.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A member of another attempt connected to rank 0.
    #[error("rank {rank} is of attempt {theirs}, and this is attempt {own}")]
    Mixed { rank: u64, theirs: u64, own: u64 },
}

/// Connections of this member: of rank 0 to all members, of other members to rank 0.
#[derive(Debug)]
pub struct Team(Role);

#[derive(Debug)]
enum Role {
    Leader(Vec<TcpStream>),
    Follower(TcpStream),
}

impl Team {
    /// Waits until all members are connected. Every member gets the words of rank 0.
    pub fn meet(settings: &Settings, words: Vec<u64>) -> Result<(Self, Vec<u64>), Unmet> {
        if settings.leads() {
            let mut team = Self(Role::Leader(gather(settings)?));
            let words = team.broadcast(words)?;
            return Ok((team, words));
        }
        // A leader that exits before all members are connected was of an earlier attempt.
        Ok(patiently(|| {
            let mut team = Self(Role::Follower(join(settings)?));
            let words = team.broadcast(words.clone())?;
            Ok((team, words))
        })?)
    }

    /// Sends the words of rank 0 to all members. Words of other members only give the number to
    /// expect.
    fn broadcast(&mut self, words: Vec<u64>) -> io::Result<Vec<u64>> {
        match &mut self.0 {
            Role::Leader(followers) => {
                followers.iter_mut().try_for_each(|f| send(f, &words))?;
                Ok(words)
            }
            Role::Follower(leader) => receive(leader, words.len()),
        }
    }

    /// Sums the words of all members, one by one, and sends the sums to all.
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

/// Rank 0: listens until all ranks are connected. Then it closes the listener, so that a member of
/// the next attempt retries elsewhere.
fn gather(settings: &Settings) -> Result<Vec<TcpStream>, Unmet> {
    let listener =
        patiently(|| TcpListener::bind((settings.master.0.as_str(), settings.master.1)))?;
    listener.set_nonblocking(true)?;
    let mut followers: Vec<Option<TcpStream>> = (1..settings.world).map(|_| None).collect();
    while followers.iter().any(Option::is_none) {
        let (mut stream, _) = patiently(|| listener.accept())?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        // A foreign connection, or a dead member, delays no other member.
        let greeting = receive(&mut stream, 3);
        let Ok([rank, world, attempt]) = greeting.as_deref() else {
            continue;
        };
        // A member without a supervisor does not know its attempt.
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

/// Connects to rank 0 and sends rank and attempt.
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

/// Retries until success. Returns the last error if it never succeeds.
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
