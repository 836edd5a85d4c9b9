//! The programs of docs/how-to/checkpoint-on-request.md save on request, and resume at that step.
//! `make test-frameworks` installs the frameworks.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of a test fails the test by panicking"
)]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use lockstep_supervisor_protocol::{
    FromAgent, FromSupervisor, Release, Rendezvous, SavePolicy, SaveReply, SaveRequest, Text,
};

use crate::support::{Agent, Run, release};

const USR1: u8 = 10;
const TERM: u8 = 15;
/// A deadline in the future, in seconds since 1970.
const LATER: u64 = 4_000_000_000;
/// The request comes at this step.
const STEP: u64 = 3;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Python block with this number in a section of a page.
fn block(page: &str, section: &str, number: usize) -> String {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let sections = text.split("\n## ");
    let mut found = sections.filter(|s| s.lines().next() == Some(section));
    let section = found
        .next()
        .unwrap_or_else(|| panic!("{page}: no section {section}"));
    let mut blocks = section.split("```python\n").skip(number);
    let block = blocks.next().and_then(|b| b.split("```").next());
    block
        .unwrap_or_else(|| panic!("{page}: no block {number}"))
        .to_owned()
}

/// A program of tests/frameworks, with the blocks of the pages that its comments name.
fn program(name: &str) -> String {
    let path = repository().join("tests/frameworks").join(name);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| {
        let Some((page, section)) = line
            .strip_prefix("# ")
            .and_then(|named| named.split_once(": "))
        else {
            return format!("{line}\n");
        };
        let numbered = section.rsplit_once(' ');
        let numbered = numbered.and_then(|(section, n)| Some((section, n.parse().ok()?)));
        let (section, number) = numbered.unwrap_or((section, 1));
        block(page, section, number)
    });
    lines.collect()
}

/// Members that run a command, each with a supervisor.
struct Gang {
    runs: Vec<Run>,
    agents: Vec<Agent>,
    folder: tempfile::TempDir,
    signal: u8,
}

impl Gang {
    fn new(name: &str, members: u32, signal: u8, launcher: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        fs::write(&script, program(name)).unwrap();
        let checkpoints = folder.path().join("checkpoints");
        fs::create_dir(&checkpoints).unwrap();
        let bin = repository().join("target/frameworks/bin");
        let path = std::env::var("PATH").unwrap();
        let mut variables = vec![
            format!("PATH={}:{path}", bin.display()),
            format!("CHECKPOINTS={}", checkpoints.display()),
            format!(
                "TORCH_EXTENSIONS_DIR={}",
                bin.join("../extensions").display()
            ),
            "OMP_NUM_THREADS=1".to_owned(),
            "DS_ACCELERATOR=cpu".to_owned(),
            "JAX_PLATFORMS=cpu".to_owned(),
        ];
        if launcher == ["python"] {
            variables.push(format!("WORLD_SIZE={members}"));
        }
        let command = [launcher, &[script.to_str().unwrap()]].concat();
        let runs = (0..members).map(|rank| {
            let own = [format!("RANK={rank}"), "LOCAL_RANK=0".to_owned()];
            let all: Vec<&str> = ["env"]
                .into_iter()
                .chain(variables.iter().map(String::as_str))
                .chain(own.iter().map(String::as_str))
                .collect();
            Run::new(&all, &[], &command)
        });
        let runs: Vec<Run> = runs.collect();
        let agents = runs.iter().map(|run| run.agent_of_version(2)).collect();
        Self {
            runs,
            agents,
            folder,
            signal,
        }
    }

    fn starts(&mut self, attempt: u64) {
        for agent in &mut self.agents {
            agent.hold(attempt);
        }
        for agent in &mut self.agents {
            while agent.hears() != (FromSupervisor::Arrived { attempt }) {}
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        for agent in &mut self.agents {
            let FromAgent::Release(release) = release(attempt) else {
                return;
            };
            agent.says(&FromAgent::Release(Release {
                coordinator: Some(Rendezvous {
                    ip: [127, 0, 0, 1].into(),
                    port,
                }),
                world: 0,
                checkpoint: Some(SavePolicy {
                    signal: Some(self.signal),
                    timeout_seconds: 120,
                    hold_stop_seconds: 0,
                }),
                ..release
            }));
        }
        for agent in &mut self.agents {
            assert_eq!(agent.hears(), FromSupervisor::Started { attempt });
        }
    }

    /// Waits for the next frame of the first member that has a value.
    fn awaits<T>(&mut self, wanted: impl Fn(&FromSupervisor) -> Option<T>) -> T {
        loop {
            let frame = self.agents[0].hears();
            if let Some(found) = wanted(&frame) {
                return found;
            }
            let expected = matches!(
                frame,
                FromSupervisor::Progress(_) | FromSupervisor::Checkpoint { .. }
            );
            let logs: Vec<String> = self.runs.iter().map(Run::log).collect();
            assert!(expected, "{frame:?}: {}", logs.join("\n"));
        }
    }

    /// Waits until the first member has made steps.
    fn trains(&mut self) -> u64 {
        self.awaits(|frame| match frame {
            FromSupervisor::Progress(progress) => (progress.step >= STEP).then_some(progress.step),
            _ => None,
        })
    }

    /// Sends a request to all members. Returns the step that the first member saves.
    fn saves(&mut self) -> u64 {
        let call = FromAgent::Checkpoint(SaveRequest {
            attempt: 1,
            id: Text::cut("a"),
            reason: Text::cut("User"),
            deadline: LATER,
            watch: false,
        });
        for agent in &mut self.agents {
            agent.says(&call);
        }
        self.awaits(|frame| match frame {
            FromSupervisor::Checkpoint { reply, .. } => match reply {
                SaveReply::Requested => None,
                SaveReply::Saved(step) => Some(*step),
                SaveReply::Unsupported => panic!("unsupported"),
            },
            _ => None,
        })
    }

    /// The step at which the attempt has begun.
    fn resumed(&self, attempt: u64) -> String {
        let name = format!("checkpoints/resumed.{attempt}");
        let text = fs::read_to_string(self.folder.path().join(name)).unwrap();
        text.trim().to_owned()
    }
}

fn saves_and_resumes(name: &str, members: u32, signal: u8, launcher: &[&str]) {
    let mut gang = Gang::new(name, members, signal, launcher);
    gang.starts(1);
    let known = gang.trains();
    let saved = gang.saves();
    assert!(saved >= known, "{saved} at {known}");
    if signal == TERM {
        for agent in &mut gang.agents {
            while !matches!(agent.hears(), FromSupervisor::Exited { .. }) {}
        }
    }
    gang.starts(2);
    let step = gang.trains();
    assert!(step > saved, "{step} after {saved}");
    assert_eq!(
        (gang.resumed(1), gang.resumed(2)),
        (String::new(), saved.to_string())
    );
}

const TORCHRUN: &[&str] = &["torchrun", "--nproc-per-node=2"];

#[test]
#[ignore = "make test-frameworks"]
fn pytorch_saves_on_request() {
    saves_and_resumes("pytorch.py", 2, USR1, &["python"]);
}

#[test]
#[ignore = "make test-frameworks"]
fn torchrun_passes_the_request_to_its_workers() {
    saves_and_resumes("pytorch.py", 1, USR1, TORCHRUN);
}

#[test]
#[ignore = "make test-frameworks"]
fn trainer_saves_on_request() {
    saves_and_resumes("trainer.py", 1, USR1, TORCHRUN);
}

#[test]
#[ignore = "make test-frameworks"]
fn lightning_saves_on_request() {
    saves_and_resumes("fit.py", 1, USR1, TORCHRUN);
}

#[test]
#[ignore = "make test-frameworks"]
fn deepspeed_saves_on_request() {
    saves_and_resumes("engine.py", 1, USR1, TORCHRUN);
}

#[test]
#[ignore = "make test-frameworks"]
fn orbax_saves_on_request() {
    saves_and_resumes("orbax_loop.py", 2, TERM, &["python"]);
}

/// The supervisor sets the time for which torchrun waits.
#[test]
#[ignore = "make test-frameworks"]
fn torchrun_waits_for_a_long_save_after_sigterm() {
    saves_and_resumes("long_save.py", 1, TERM, TORCHRUN);
}
