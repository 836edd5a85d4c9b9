//! Output to a terminal and to a file.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};

use crate::problems::command;
use crate::screens::with_status;
use crate::server::{ApiServer, WORKLOADS, find_entry};

const RED: &str = "\u{1b}[31mFailed\u{1b}[0m";
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

fn cluster() -> ApiServer {
    let status = json!({"phase": "Failed", "reason": "FailurePolicy", "ready": "0/4", "attempt": 1,
            "groups": [{"name": "workers", "desired": 4, "failed": 1}],
            "message": "container t ended with exit code 3 (Error), rule all"});
    let lists = [(WORKLOADS, vec![with_status("llama", 4, &status)])].into();
    ApiServer::start(move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        match find_entry(&lists, path, |_| true) {
            (200, found) => (200, found),
            _ => (200, json!({"metadata": {}, "items": Vec::<Value>::new()})),
        }
    })
}

/// The command line for that cluster, with the `TERM` of a terminal that has colours.
fn colourful(server: &ApiServer, args: &[&str]) -> Command {
    let mut command = command(&[args, &["--server", &server.address, "-n", "ml"]].concat());
    command.env("TERM", "xterm");
    command
}

/// A program on its own terminal, until it is dropped.
struct OnTerminal {
    child: Child,
    screen: File,
}

impl OnTerminal {
    fn start(command: Command) -> Self {
        Self::start_with_width(command, 200)
    }

    fn start_with_width(mut command: Command, columns: u16) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize {
            ws_row: 40,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let inside = File::options()
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let child = command.stdout(Stdio::from(inside)).spawn().unwrap();
        // The command holds the other end, which must close with the program.
        drop(command);
        let screen = File::from(terminal);
        Self { child, screen }
    }

    /// Output until the condition holds, or until the program has ended.
    fn until(&mut self, enough: impl Fn(&str) -> bool) -> String {
        let (mut text, mut part) = (String::new(), [0; 4096]);
        while !enough(&text) {
            match self.screen.read(&mut part) {
                Ok(n) if n > 0 => text.push_str(&String::from_utf8_lossy(&part[..n])),
                // EIO: the other end is closed.
                Ok(_) | Err(_) => break,
            }
        }
        text
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn only_a_terminal_gets_colours_and_none_where_no_color_is_set() {
    let server = cluster();
    let on_terminal = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = colourful(&server, args);
        command.envs(env.iter().copied());
        OnTerminal::start(command).until(|_| false)
    };
    let file = colourful(&server, &["status", "llama"]).output().unwrap();
    let plain = [
        String::from_utf8(file.stdout).unwrap(),
        on_terminal(&["status", "llama"], &[("NO_COLOR", "1")]),
        on_terminal(&["status", "llama"], &[("TERM", "dumb")]),
        on_terminal(&["status", "llama", "-o", "json"], &[]),
    ];
    for shown in plain {
        let escapes = shown.contains('\u{1b}');
        assert!(shown.contains("Failed") && !escapes, "{shown:?}");
    }
    let shown = on_terminal(&["status", "llama"], &[]);
    assert!(shown.contains(RED), "{shown:?}");
}

#[test]
fn the_width_of_the_terminal_limits_the_lines() {
    let server = cluster();
    let mut command = colourful(&server, &["status", "llama"]);
    command.env("NO_COLOR", "1");
    let shown = OnTerminal::start_with_width(command, 30).until(|_| false);
    let table =
        "GROUP     READY   SUCCEEDED\r\nworkers   0       0\r\n  failed: 1\r\n  desired: 4\r\n";
    assert!(shown.contains(table), "{shown:?}");
}

#[test]
fn what_is_watched_stays_in_its_place_on_a_terminal() {
    let server = cluster();
    for args in [&["status", "llama"][..], &["queue"]] {
        let command = colourful(&server, &[args, &["--watch"]].concat());
        let mut program = OnTerminal::start(command);
        let shown = program.until(|shown| shown.contains("\r\n"));
        assert!(shown.starts_with(CLEAR), "{args:?}: {shown:?}");
        assert!(program.child.try_wait().unwrap().is_none(), "{args:?}");
    }
}
