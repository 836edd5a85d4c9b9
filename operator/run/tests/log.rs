//! A log that no process reads.
mod support;

use lockstep_wire::{ExitReason, FromSupervisor, ProgressLimits};
use rustix::process::Signal;

use crate::support::{Run, release_with};

#[test]
fn a_full_log_does_not_delay_a_restart() {
    let (run, mut log) = Run::with_full_log("echo $LOCKSTEP_ATTEMPT > attempt; sleep 1000");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(run.file("attempt"), "1");
    agent.starts(2);
    drop(agent);
    drop(run.agent());
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
