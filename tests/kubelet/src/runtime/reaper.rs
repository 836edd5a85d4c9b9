//! Kills the containers' processes after the end of the process that simulates the nodes, also if
//! it was killed.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

use parking_lot::Mutex;
use rustix::process::Pid;
use tracing::warn;

/// A shell that reads process groups from its standard input and kills the remaining groups when it
/// closes.
const SCRIPT: &str = r#"
groups=
while read -r word group; do
  case $word in
  started) groups="$groups -$group" ;;
  ended) set -- $groups; groups=; for g; do [ "$g" = "-$group" ] || groups="$groups $g"; done ;;
  esac
done
[ -z "$groups" ] || kill -9 $groups
"#;

/// The shell.
#[derive(Debug)]
pub struct Reaper(Mutex<ChildStdin>);

impl Reaper {
    /// Starts the shell in a separate process group, because a signal that ends this process must
    /// not end the shell.
    pub fn start() -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = shell.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self(Mutex::new(pipe)))
    }

    /// Registers a process group to kill at the end of this process.
    pub(super) fn started(&self, group: Pid) {
        self.say("started", group);
    }

    /// Removes a process group that has ended.
    pub(super) fn ended(&self, group: Pid) {
        self.say("ended", group);
    }

    fn say(&self, word: &str, group: Pid) {
        if let Err(error) = writeln!(self.0.lock(), "{word} {}", group.as_raw_nonzero()) {
            warn!(%error, "processes of containers may outlive this one");
        }
    }
}
