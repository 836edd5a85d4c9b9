//! The supervisor's lines in the log, and a full log.

use lockstep_supervisor_protocol::{ExitReason, FromSupervisor, ProgressLimits};
use rustix::process::Signal;

use crate::support::{Run, release_with};

/// `kubectl lockstep logs --failed` parses these lines.
#[test]
fn lines_of_the_log_mark_the_start_and_the_end_of_each_attempt() {
    let run = Run::script(
        &[],
        "echo step of $LOCKSTEP_ATTEMPT >&2; exit $LOCKSTEP_ATTEMPT",
    );
    let mut agent = run.agent();
    for attempt in [1, 2] {
        agent.starts(attempt);
        assert_eq!(agent.hears_exit(attempt).0, attempt as u8);
    }
    let log = run.log();
    let lines = log
        .lines()
        .filter(|line| line.starts_with("step") || line.starts_with("lockstep-run: attempt"));
    let starts = |attempt| {
        let port = 29_500 + attempt;
        format!("lockstep-run: attempt {attempt} starts: 4 members, coordinator 10.0.0.7:{port}")
    };
    let expected = [
        starts(1).as_str(),
        "step of 1",
        "lockstep-run: attempt 1 ended with code 1",
        starts(2).as_str(),
        "step of 2",
        "lockstep-run: attempt 2 ended with code 2",
    ]
    .map(str::to_owned);
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn a_full_log_does_not_delay_a_restart() {
    let (run, mut log) = Run::with_full_log("echo $LOCKSTEP_ATTEMPT > attempt; sleep 1000");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(run.file("attempt"), "1");
    agent.starts(2);
    // Otherwise the next line could be dropped, too, and there would be no other.
    log.read_some();
    drop(agent);
    let text = log.read_until("the agent is away");
    assert!(
        text.contains("lines dropped because the log was full: "),
        "{text}"
    );
    assert!(!text.contains("attempt 2 starts"), "{text}");
}

#[test]
fn a_full_log_does_not_delay_sigterm() {
    let script = "trap 'exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let (mut run, _log) = Run::with_full_log(script);
    let mut agent = run.agent();
    agent.starts(1);
    run.file("ready");
    run.signal(Signal::TERM);
    assert_eq!(agent.hears_exit(1), (143, ExitReason::Terminated));
    assert_eq!(run.exit_code(), Some(143));
}

#[test]
fn a_child_that_hangs_because_its_log_is_full_is_reported_and_killed() {
    let script = r#"echo 1 > "$LOCKSTEP_PROGRESS"; echo line >&2; echo > written"#;
    let (run, _log) = Run::with_full_log(script);
    let mut agent = run.agent();
    agent.hold(1);
    while agent.hears() != (FromSupervisor::Arrived { attempt: 1 }) {}
    let limits = ProgressLimits {
        timeout_seconds: 1,
        startup_seconds: 1,
    };
    agent.says(&release_with(1, Some(limits)));
    assert_eq!(agent.hears(), FromSupervisor::Started { attempt: 1 });
    assert!(matches!(agent.hears(), FromSupervisor::Progress(_)));
    assert_eq!(agent.hears_exit(1), (137, ExitReason::Hang));
    assert!(!run.path("written").exists());
    agent.starts(2);
}
