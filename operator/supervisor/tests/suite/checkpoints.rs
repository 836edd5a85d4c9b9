//! Requests for checkpoints to real processes.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of a test fails the test by panicking"
)]

use std::fs;

use lockstep_supervisor_protocol::{
    ExitReason, FromAgent, FromSupervisor, ProgressLimits, Release, SavePolicy, SaveReply,
    SaveRequest, Text,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Agent, Run, release, until};

const USR1: u8 = 10;
/// A deadline in the future, in seconds since 1970.
const LATER: u64 = 4_000_000_000;

/// Saves step 7 on SIGUSR1. Its files have its pid.
const WORKER: &str = r#"
import os, signal, time
def note(what):
    with open(f"{what}.{os.getpid()}", "w") as f: f.write("\n")
def save(*_):
    note("signalled")
    with open(os.environ["LOCKSTEP_PROGRESS"], "w") as f: f.write("7 7")
def wait():
    note("ready")
    while True: time.sleep(0.01)
"#;
const HANDLES: &str = "\nsignal.signal(signal.SIGUSR1, save)\n";
const WAITS: &str = "\nwait()\n";

/// Starts two workers in their own sessions, as torchrun does.
const LAUNCHER: &str = r#"
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
worker = [sys.executable, "-c", sys.argv[1]]
workers = [subprocess.Popen(worker, start_new_session=True) for _ in range(2)]
for worker in workers: worker.wait()
"#;

/// Catches each signal, as dumb-init and programs in Go do.
const CATCHES_ALL: &str = r#"
import signal, subprocess, sys
for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(s, lambda n, _: n == signal.SIGCHLD or open("wrong", "w").close())
    except OSError: pass
subprocess.run([sys.executable, "-c", sys.argv[1]])
"#;

/// A worker with a forked data loader, which inherits the handler, and a spawned one with its own.
const LOADERS: &str = r#"
import subprocess, sys
if os.fork():
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
wait()
"#;

fn worker() -> String {
    [WORKER, HANDLES, WAITS].concat()
}

fn started(command: &[&str], signal: Option<u8>) -> (Run, Agent) {
    started_with(command, signal, None)
}

fn started_with(
    command: &[&str],
    signal: Option<u8>,
    progress: Option<ProgressLimits>,
) -> (Run, Agent) {
    let run = Run::new(&[], &[], command);
    let mut agent = run.agent_of_version(2);
    starts(&mut agent, 1, signal, progress);
    (run, agent)
}

fn starts(agent: &mut Agent, attempt: u64, signal: Option<u8>, progress: Option<ProgressLimits>) {
    agent.hold(attempt);
    while agent.hears() != (FromSupervisor::Arrived { attempt }) {}
    let FromAgent::Release(release) = release(attempt) else {
        return;
    };
    agent.says(&FromAgent::Release(Release {
        progress,
        checkpoint: Some(SavePolicy {
            signal,
            timeout_seconds: 60,
            hold_stop_seconds: 60,
        }),
        ..release
    }));
    assert_eq!(agent.hears(), FromSupervisor::Started { attempt });
}

fn call(id: &str, deadline: u64) -> FromAgent {
    FromAgent::Checkpoint(SaveRequest {
        attempt: 1,
        id: Text::cut(id),
        reason: Text::cut("Preemption"),
        deadline,
        watch: false,
    })
}

/// The next answer to a request.
fn answer(agent: &mut Agent, id: &str) -> SaveReply {
    loop {
        match agent.hears() {
            FromSupervisor::Progress(_) => {}
            FromSupervisor::Checkpoint { request, reply } => {
                assert_eq!((request.attempt, &*request.id), (1, id));
                return reply;
            }
            other => panic!("{other:?} instead of an reply"),
        }
    }
}

/// The process is asked, and saves this step.
fn saves(agent: &mut Agent, id: &str, step: u64) {
    agent.says(&call(id, LATER));
    assert_eq!(answer(agent, id), SaveReply::Requested);
    assert_eq!(answer(agent, id), SaveReply::Saved(step));
}

fn files(run: &Run, what: &str) -> usize {
    let files = fs::read_dir(run.folder()).unwrap().flatten();
    let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(what));
    named.count()
}

#[test]
fn a_process_that_has_no_handler_yet_survives_a_request() {
    let script = r#"
        until [ -e go ]; do sleep 0.01; done
        trap 'echo "3 3" > "$LOCKSTEP_PROGRESS"' USR1
        echo > ready
        while :; do sleep 0.01; done
    "#;
    let (run, mut agent) = started(&["sh", "-c", script], Some(USR1));
    agent.says(&call("early", LATER));
    assert_eq!(answer(&mut agent, "early"), SaveReply::Unsupported);
    fs::write(run.path("go"), "").unwrap();
    run.file("ready");
    saves(&mut agent, "late", 3);
}

#[test]
fn the_first_processes_with_a_handler_are_signalled_below_any_launcher() {
    let worker = worker();
    let spawns_loaders = [WORKER, HANDLES, LOADERS].concat();
    for (command, ready, signalled) in [
        (
            &["bash", "-c", "python3 -c \"$0\"; true", &worker][..],
            1,
            1,
        ),
        (&["nohup", "setsid", "-w", "python3", "-c", &worker], 1, 1),
        (&["python3", "-c", LAUNCHER, &worker], 2, 2),
        (&["python3", "-c", CATCHES_ALL, &worker], 1, 1),
        (&["python3", "-c", &spawns_loaders, &worker], 3, 1),
    ] {
        let (run, mut agent) = started(command, Some(USR1));
        until("the workers are ready", || files(&run, "ready") == ready);
        saves(&mut agent, "a", 7);
        until("each worker has saved", || {
            files(&run, "signalled") == signalled
        });
        agent.says(&call("a", LATER));
        assert_eq!(answer(&mut agent, "a"), SaveReply::Saved(7));
        assert!(!run.path("wrong").exists());
        assert_eq!(files(&run, "signalled"), signalled, "{command:?}");
    }
}

#[test]
fn a_program_that_reads_the_file_needs_no_handler() {
    let script = r#"
        cat "$LOCKSTEP_CHECKPOINT_REQUEST" 2> left
        echo "5 requests=1" > "$LOCKSTEP_PROGRESS"
        until grep . "$LOCKSTEP_CHECKPOINT_REQUEST" > line; do sleep 0.01; done
        echo "6 6 requests=1" > "$LOCKSTEP_PROGRESS"
        sleep 1000
    "#;
    let (run, mut agent) = started(&["sh", "-c", script], None);
    assert!(matches!(agent.hears(), FromSupervisor::Progress(p) if p.step == 5));
    saves(&mut agent, "a-1", 6);
    let line = run.file("line");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[..2], ["a-1", "Preemption"]);
    assert!(words[2].parse::<u64>().is_ok() && words.len() == 3);
    fs::remove_file(run.path("left")).unwrap();
    starts(&mut agent, 2, None, None);
    until("the next process starts", || run.path("left").exists());
    assert!(
        run.file("left").contains("No such file"),
        "removed at the start"
    );
}

#[test]
fn a_save_that_was_already_running_is_no_answer() {
    let script = r#"
        tell() { echo "$1" > "$LOCKSTEP_PROGRESS"; }
        trap 'tell "100 95"; until [ -e go ]; do sleep 0.01; done; tell "101 101"' USR1
        tell "100 90"
        echo > ready
        while :; do sleep 0.01; done
    "#;
    let (run, mut agent) = started(&["sh", "-c", script], Some(USR1));
    run.file("ready");
    agent.says(&call("a", LATER));
    assert_eq!(answer(&mut agent, "a"), SaveReply::Requested);
    let saved = |frame| match frame {
        FromSupervisor::Progress(progress) => progress.checkpoint.map(|saved| saved.step),
        other => panic!("{other:?}"),
    };
    while saved(agent.hears()) != Some(95) {}
    fs::write(run.path("go"), "").unwrap();
    assert_eq!(answer(&mut agent, "a"), SaveReply::Saved(101));
}

#[test]
fn a_save_right_before_the_end_of_the_process_is_a_reply() {
    let script = r#"
        trap 'echo "7 7" > "$LOCKSTEP_PROGRESS"; exit 0' USR1
        echo > ready
        while :; do sleep 0.01; done
    "#;
    let (run, mut agent) = started(&["sh", "-c", script], Some(USR1));
    run.file("ready");
    saves(&mut agent, "a", 7);
    assert_eq!(agent.hears_exit(1), (0, ExitReason::Completed));
}

#[test]
fn ranks_that_save_and_end_one_after_the_other_end_by_themselves() {
    let script = r"
        rank() { trap 'sleep $1; echo > saved.$1; exit 0' USR1; echo > ready.$1; while :; do sleep 0.01; done; }
        for after in 0.6 0.3 0; do rank $after & done
        wait
    ";
    let (run, mut agent) = started(&["bash", "-c", script], Some(USR1));
    until("all ranks run", || files(&run, "ready") == 3);
    agent.says(&call("a", LATER));
    assert_eq!(answer(&mut agent, "a"), SaveReply::Requested);
    assert_eq!(agent.hears_exit(1), (0, ExitReason::Completed));
    assert_eq!(files(&run, "saved"), 3);
}

#[test]
fn a_save_may_take_longer_than_the_time_after_which_a_process_hangs() {
    let limits = ProgressLimits {
        timeout_seconds: 1,
        startup_seconds: 1,
    };
    let script = r#"
        trap 'sleep 2; echo "1 1" > "$LOCKSTEP_PROGRESS"; echo > saved' USR1
        echo 1 > "$LOCKSTEP_PROGRESS"
        echo > ready
        while :; do sleep 0.01; done
    "#;
    let (run, mut agent) = started_with(&["sh", "-c", script], Some(USR1), Some(limits));
    run.file("ready");
    saves(&mut agent, "a", 1);
    run.file("saved");
    let exit = loop {
        if let FromSupervisor::Exited { exit, .. } = agent.hears() {
            break exit;
        }
    };
    assert_eq!(
        exit.reason,
        ExitReason::Hang,
        "it makes no step after the save"
    );
}

#[test]
fn a_stopped_process_gives_no_answer_and_is_killed_by_the_next_order() {
    let (run, mut agent) = started(&["python3", "-c", &worker()], Some(USR1));
    until("the worker is ready", || files(&run, "ready") == 1);
    for pid in run.descendants() {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    }
    agent.says(&call("a", 1));
    assert_eq!(
        answer(&mut agent, "a"),
        SaveReply::Requested,
        "it is too late"
    );
    agent.hold(2);
    agent.hears_arrival(2);
    assert_eq!(files(&run, "signalled"), 0);
}

#[test]
fn sigterm_of_the_kubelet_waits_until_the_gang_has_answered() {
    let script = r#"
        trap 'echo "1 1" > "$LOCKSTEP_PROGRESS"' USR1
        trap 'echo > stopped; exit 0' TERM
        echo > ready
        while :; do sleep 0.01; done
    "#;
    let (mut run, mut agent) = started(&["sh", "-c", script], Some(USR1));
    run.file("ready");
    run.signal(Signal::TERM);
    until("it is held back", || {
        run.log().contains("signal 15 is held back")
    });
    saves(&mut agent, "a", 1);
    assert!(!run.path("stopped").exists() && !run.has_exited());
    agent.says(&FromAgent::Stop { attempt: 1 });
    assert_eq!(agent.hears(), FromSupervisor::PassesStops { attempt: 1 });
    assert_eq!(agent.hears_exit(1), (143, ExitReason::Terminated));
    assert_eq!(run.exit_code(), Some(143));
    assert!(run.path("stopped").exists());
}

#[test]
fn an_agent_of_protocol_version_1_hears_of_no_request() {
    let (run, mut agent) = started(&["python3", "-c", &worker()], Some(USR1));
    until("the worker is ready", || files(&run, "ready") == 1);
    agent.says(&call("a", LATER));
    assert_eq!(answer(&mut agent, "a"), SaveReply::Requested);
    let mut old = run.agent_of_version(1);
    assert_eq!(old.hears(), FromSupervisor::Started { attempt: 1 });
    assert!(matches!(old.hears(), FromSupervisor::Progress(_)));
    let mut new = run.agent_of_version(2);
    assert_eq!(new.hears(), FromSupervisor::Started { attempt: 1 });
    assert_eq!(answer(&mut new, "a"), SaveReply::Saved(7));
    run.agent_of_version(1).starts(2);
}
