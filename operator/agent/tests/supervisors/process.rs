//! `lockstep-run` as a process, as in a training container.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::node::becomes;

/// The program. It belongs to another crate, so the first test builds it.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let args = ["build", "-p", "lockstep-run", "--message-format=json"];
        let built = Command::new(env!("CARGO"))
            .args(args)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(built.status.success(), "lockstep-run does not build");
        let messages = String::from_utf8(built.stdout).unwrap();
        let program = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
        program.unwrap()
    })
}

/// A supervisor. All its descendants end with it.
pub struct Supervisor {
    process: Child,
    folder: PathBuf,
}

impl Supervisor {
    /// Supervises a shell script. The path of the volume may exceed the limit of socket paths; in a
    /// container it is short.
    pub fn start(folder: &Path, script: &str) -> Self {
        let process = Command::new(program())
            .args(["exec", "--dir", ".", "--clean-shm", "none", "--"])
            .args(["sh", "-c", script])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        Self {
            process,
            folder: folder.to_owned(),
        }
    }

    pub async fn line(&self, name: &str) -> String {
        let path = self.folder.join(name);
        let read = || fs::read_to_string(&path).unwrap_or_default();
        becomes(&format!("{name} is written"), || read().ends_with('\n')).await;
        read().trim_end().to_owned()
    }

    pub async fn prints(&self, text: &str) {
        let log = self.folder.join("log");
        let has = || fs::read_to_string(&log).is_ok_and(|log| log.contains(text));
        becomes(&format!("{text:?} is printed"), has).await;
    }

    pub fn has_exited(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub async fn exit_code(&mut self) -> i32 {
        becomes("the supervisor exits", || self.has_exited()).await;
        self.process.wait().unwrap().code().unwrap()
    }

    pub fn kill(pid: &str) {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // SIGTERM first: the supervisor kills its descendants, including a child that is just being
        // started. A search from outside may miss that child.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        for _ in 0..10_000 {
            if self.has_exited() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
