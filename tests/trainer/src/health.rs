//! Answers HTTP probes: 200, or 503 while a file exists.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Longest time that a client may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);

/// Answers on this port from now on. `sick` is the file.
pub fn listen(port: u16, sick: PathBuf) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).context("listen for probes")?;
    thread::spawn(move || answer_all(&listener, &sick));
    Ok(())
}

fn answer_all(listener: &TcpListener, sick: &Path) {
    for stream in listener.incoming().flatten() {
        // A client that closes its connection needs no answer.
        let _ = answer(stream, sick);
    }
}

fn answer(mut stream: TcpStream, sick: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST))?;
    let read = stream.read(&mut [0; 4096])?;
    let status = match read {
        0 => return Ok(()),
        _ if sick.exists() => "503 Service Unavailable",
        _ => "200 OK",
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(port: u16) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: member\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap().to_owned()
    }

    #[test]
    fn a_member_is_healthy_until_its_file_exists() {
        let folder = tempfile::tempdir().unwrap();
        let sick = folder.path().join("sick");
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let file = sick.clone();
        thread::spawn(move || answer_all(&listener, &file));
        assert_eq!(probe(port), "HTTP/1.1 200 OK");
        std::fs::write(&sick, "").unwrap();
        assert_eq!(probe(port), "HTTP/1.1 503 Service Unavailable");
    }
}
