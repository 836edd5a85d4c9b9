#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking"
)]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A number of steps that no test reaches by default. A member whose test has died still ends.
const MANY: u64 = 100_000;

static NEXT: AtomicU8 = AtomicU8::new(0);

struct Member {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Both fail only for an ended process, which is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    /// Waits for a line of output with this beginning, and returns the number at its end.
    fn says(&mut self, start: &str) -> u64 {
        let line = self
            .lines
            .by_ref()
            .map(Result::unwrap)
            .find(|l| l.starts_with(start))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

struct Job {
    folder: TempDir,
    /// A separate loopback address, so that two jobs never connect.
    address: String,
}

impl Job {
    fn new() -> Self {
        let [low, high, ..] = std::process::id().to_le_bytes();
        let address = format!(
            "127.{}.{low}.{}",
            1 + high % 254,
            1 + NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self {
            folder: tempfile::tempdir().unwrap(),
            address,
        }
    }

    /// Starts an attempt with members of rank 0 and up.
    fn start(&self, members: usize, steps: u64) -> Vec<Member> {
        (0..members)
            .map(|rank| self.start_one(rank, members, steps))
            .collect()
    }

    fn start_one(&self, rank: usize, members: usize, steps: u64) -> Member {
        self.start_at(rank, members, steps, 1)
    }

    fn start_at(&self, rank: usize, members: usize, steps: u64, attempt: u64) -> Member {
        let file = |name: &str| self.folder.path().join(format!("{name}-{rank}"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep-trainer"))
            .env_clear()
            .env("MASTER_ADDR", &self.address)
            .env("MASTER_PORT", "29500")
            .env("PET_NNODES", members.to_string())
            .env("PET_NODE_RANK", rank.to_string())
            .env("CHECKPOINT_DIR", self.folder.path())
            .env("LOCKSTEP_ATTEMPT", attempt.to_string())
            .env("PROGRESS_FILE", file("progress"))
            .env("JOURNAL_FILE", file("journal"))
            .env("COMMAND_FILE", file("command"))
            .env("STEP_MILLIS", "2")
            .env("CHECKPOINT_EVERY", "10")
            .env("STEPS", steps.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Member { child, lines }
    }

    fn checkpoint(&self) -> (String, u64, String) {
        let text = fs::read_to_string(self.folder.path().join("checkpoint")).unwrap();
        let mut parts = text.splitn(3, ' ').map(str::to_owned);
        let mut next = || parts.next().unwrap();
        (next(), next().parse().unwrap(), next())
    }

    fn progress(&self, rank: usize) -> Vec<u64> {
        let text = fs::read_to_string(self.folder.path().join(format!("progress-{rank}"))).unwrap();
        text.split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect()
    }
}

fn exit_codes(members: &mut [Member]) -> Vec<Option<i32>> {
    members.iter_mut().map(Member::exit_code).collect()
}

#[test]
fn after_a_kill_other_members_exit_with_1_and_the_next_attempt_loads_the_checkpoint() {
    let job = Job::new();
    let mut first = job.start(3, MANY);
    first[0].says("checkpoint");
    first[2].signal(Signal::KILL);
    assert_eq!(exit_codes(&mut first), [Some(1), Some(1), None]);
    let (_, saved, _) = job.checkpoint();

    let mut second = job.start(3, saved + 15);
    assert_eq!(
        [0, 1, 2].map(|rank| second[rank].says("begins")),
        [saved; 3]
    );
    assert_eq!(exit_codes(&mut second), [Some(0); 3]);
    assert_eq!(job.progress(2), [saved, saved + 15]);
}

#[test]
fn after_sigterm_to_one_member_all_stop_after_the_same_step_with_a_checkpoint() {
    let job = Job::new();
    let mut members = job.start(2, MANY);
    members[0].says("checkpoint");
    members[1].signal(Signal::TERM);
    assert_eq!(exit_codes(&mut members), [Some(143); 2]);
    let (occasion, step, _) = job.checkpoint();
    assert_eq!(occasion, "stop");
    // The step of the stop is not reported any more, because training is over.
    assert_eq!([0, 1].map(|rank| job.progress(rank)[1] + 1), [step; 2]);
}

#[test]
fn sigterm_ends_a_member_whose_peers_have_not_come() {
    // The folder lives as long as this value.
    let job = Job::new();
    let mut alone = job.start_one(1, 2, MANY);
    alone.says("meets");
    alone.signal(Signal::TERM);
    assert_eq!(alone.exit_code(), Some(143));
}

#[test]
fn interrupted_training_ends_with_the_same_parameters_as_uninterrupted_training() {
    let (straight, interrupted) = (Job::new(), Job::new());
    let mut first = interrupted.start(2, MANY);
    first[0].says("checkpoint");
    first[1].signal(Signal::KILL);
    exit_codes(&mut first);
    let steps = interrupted.checkpoint().1 + 5;
    assert_eq!(exit_codes(&mut interrupted.start(2, steps)), [Some(0); 2]);
    assert_eq!(exit_codes(&mut straight.start(2, steps)), [Some(0); 2]);
    assert_eq!(straight.checkpoint(), interrupted.checkpoint());
}

#[test]
fn wrong_settings_end_with_2() {
    let status = Command::new(env!("CARGO_BIN_EXE_lockstep-trainer"))
        .env_clear()
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_member_of_another_attempt_ends_rank_0_with_99() {
    let job = Job::new();
    let mut leader = job.start_at(0, 2, MANY, 7);
    let _late = job.start_at(1, 2, MANY, 6);
    assert_eq!(leader.exit_code(), Some(99));
    let journal = fs::read_to_string(job.folder.path().join("journal-0")).unwrap();
    let events: Vec<_> = journal
        .lines()
        .map(|l| l.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(events, ["started 7", "mixed 7"]);
}

#[test]
fn a_member_exits_with_the_code_of_its_command_file() {
    let job = Job::new();
    let mut members = job.start(2, MANY);
    members[0].says("checkpoint");
    fs::write(job.folder.path().join("command-1"), "exit 42").unwrap();
    assert_eq!(exit_codes(&mut members), [Some(1), Some(42)]);
}

#[test]
fn a_member_without_supervisor_meets_a_member_that_knows_its_attempt() {
    let job = Job::new();
    let mut members = [job.start_at(0, 2, 20, 7), job.start_at(1, 2, 20, 0)];
    assert_eq!(exit_codes(&mut members), [Some(0), Some(0)]);
}
