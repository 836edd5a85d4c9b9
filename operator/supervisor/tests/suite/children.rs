//! The supervisor with real processes.

use std::fs;

use lockstep_supervisor_protocol::{
    ChildExit, ExitReason, FromAgent, FromSupervisor, ProgressLimits,
};
use rustix::process::{Signal, geteuid};

use crate::support::{Agent, Run, release, release_with, until};

/// Descendants of each kind that survives the kill of a process group or SIGTERM, then the training
/// process itself.
const HARD_TO_KILL: &str = r#"
    trap "" TERM INT HUP
    setsid sh -c 'trap "" TERM; echo > session; sleep 1000; sleep 1000' &
    ( ( sh -c 'trap "" TERM; echo > orphan; sleep 1000; sleep 1000' & ) & )
    setsid sh -c '( setsid sh -c "echo > deep; sleep 1000; sleep 1000" & ) &'
    until [ -e session ] && [ -e orphan ] && [ -e deep ]; do :; done
    echo "$LOCKSTEP_ATTEMPT $PET_RDZV_ID $MASTER_ADDR:$MASTER_PORT $PET_NNODES" > attempt
    rm session orphan deep
    sleep 1000; sleep 1000
"#;

#[test]
fn nothing_starts_without_the_release_of_its_attempt() {
    let run = Run::script(&[], "echo > ran; sleep 1000");
    let mut agent = run.agent();
    agent.hears_arrival(0);
    agent.says(&release(1));
    agent.hold(2);
    agent.hears_arrival(2);
    agent.says(&release(1));
    agent.says(&release(3));
    agent.hold(2);
    agent.hears_arrival(2);
    assert!(run.descendants().is_empty() && !run.path("ran").exists());
    agent.starts(2);
    run.file("log");
    until("the script runs", || run.path("ran").exists());
}

#[test]
fn a_restart_leaves_no_descendant_alive() {
    let run = Run::script(&[], HARD_TO_KILL);
    let mut agent = run.agent();
    let mut before = Vec::new();
    for attempt in [1, 2, 5] {
        agent.hold(attempt);
        while agent.hears() != (lockstep_supervisor_protocol::FromSupervisor::Arrived { attempt }) {
        }
        assert_eq!(run.descendants(), [], "before attempt {attempt}");
        agent.starts(attempt);
        let expected = format!("{attempt} uid-{attempt} 10.0.0.7:{} 4", 29_500 + attempt);
        until("the attempt runs", || {
            fs::read_to_string(run.path("attempt")).is_ok_and(|a| a.trim_end() == expected)
        });
        until("four shells sleep", || run.descendants().len() == 8);
        let now = run.descendants();
        assert!(now.iter().all(|pid| !before.contains(pid)));
        before = now;
    }
}

#[test]
fn processes_beside_the_supervisor_are_left_alone() {
    let other = Run::script(&[], "sleep 1000; sleep 1000");
    let run = Run::script(&[], "sleep 1000; sleep 1000");
    for mut agent in [other.agent(), run.agent()] {
        agent.starts(1);
    }
    until("the shell and its sleep run", || {
        other.descendants().len() == 2
    });
    let untouched = other.descendants();
    let mut agent = run.agent();
    agent.starts(2);
    assert_eq!(other.descendants(), untouched);
}

#[test]
fn an_exit_is_reported_with_its_true_code_and_what_it_leaves_is_killed() {
    let mut run = Run::script(&[], "setsid sleep 1000 & exit 42");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (42, ExitReason::Error));
    until("the process left behind is gone", || {
        run.descendants().is_empty()
    });
    assert!(!run.has_exited(), "it waits for the decision");
    agent.says(&FromAgent::Exit { attempt: 1 });
    assert_eq!(run.exit_code(), Some(42));
}

#[test]
fn an_exit_has_the_termination_message_of_its_own_attempt() {
    let script = r#"
        [ "$LOCKSTEP_ATTEMPT" = 1 ] || exit 0
        printf 'Traceback\nRuntimeError: \377 loss is NaN\n' > message; exit 1
    "#;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("message");
    fs::write(&log, "of an earlier container").unwrap();
    let script = script.replace("message", log.to_str().unwrap());
    let run = Run::script(&["--termination-log", log.to_str().unwrap()], &script);
    let mut agent = run.agent();
    agent.starts(1);
    let mut message = || loop {
        if let FromSupervisor::Exited { exit, .. } = agent.hears() {
            break (exit.code, exit.message.to_string());
        }
    };
    let expected = "Traceback\nRuntimeError: \u{fffd} loss is NaN".to_owned();
    assert_eq!(message(), (1, expected));
    agent.starts(2);
    assert_eq!(agent.hears_exit(2).0, 0);
    assert_eq!(fs::read_to_string(log).unwrap(), "");
}

#[test]
fn an_end_by_a_signal_is_reported_as_such() {
    let run = Run::script(&[], "kill -SEGV $$");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (139, ExitReason::Error));
}

#[test]
fn a_program_that_does_not_exist_or_cannot_be_executed_is_reported() {
    for (program, code) in [
        ("/no/such/program", 127),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("/etc", 126),
    ] {
        let mut run = Run::new(&[], &[], &[program]);
        let mut agent = run.agent();
        agent.hears_arrival(0);
        agent.hold(1);
        agent.hears_arrival(1);
        agent.says(&release(1));
        assert_eq!(
            agent.hears_exit(1),
            (code, ExitReason::StartError),
            "{program}"
        );
        agent.says(&FromAgent::Exit { attempt: 1 });
        assert_eq!(run.exit_code(), Some(code.into()));
    }
}

#[test]
fn a_checkpoint_on_sigterm_is_waited_for_and_is_no_success() {
    let script =
        "trap 'echo > checkpoint; exit 0' TERM; echo > ready; while :; do sleep 0.01; done";
    let mut run = Run::script(&[], script);
    let mut agent = run.agent();
    agent.starts(1);
    run.file("ready");
    run.signal(Signal::TERM);
    assert_eq!(agent.hears_exit(1), (143, ExitReason::Terminated));
    assert_eq!(run.exit_code(), Some(143), "without a decision");
    assert!(run.path("checkpoint").exists());
}

#[test]
fn the_configured_stop_signal_stops_the_container() {
    for (name, signal, code) in [
        ("SIGUSR1", Signal::USR1, 138),
        ("SIGWINCH", Signal::WINCH, 156),
    ] {
        let script = "trap 'exit 0' USR1 WINCH; echo > ready; while :; do sleep 0.01; done";
        let mut run = Run::script(&["--stop-signal", name], script);
        let mut agent = run.agent();
        agent.starts(1);
        run.file("ready");
        run.signal(signal);
        assert_eq!(agent.hears_exit(1), (code, ExitReason::Terminated));
        assert_eq!(run.exit_code(), Some(code.into()), "without a decision");
    }
}

#[test]
fn a_survivor_can_save_its_state_before_the_next_attempt() {
    let script =
        "trap 'echo > checkpoint; exit 1' USR1; echo > ready; while :; do sleep 0.01; done";
    let options = ["--stop-signal", "SIGUSR1", "--stop-grace", "60"];
    let run = Run::script(&options, script);
    let mut agent = run.agent();
    agent.starts(1);
    run.file("ready");
    agent.hold(2);
    agent.hears_arrival(2);
    assert!(run.path("checkpoint").exists());
}

#[test]
fn sigterm_ends_a_supervisor_that_is_held() {
    let mut run = Run::script(&[], "sleep 1000");
    let mut agent = run.agent();
    agent.hears_arrival(0);
    run.signal(Signal::TERM);
    assert_eq!(run.exit_code(), Some(143));
}

#[test]
fn other_signals_reach_the_child() {
    let run = Run::script(
        &[],
        "trap 'echo > usr1' USR1; echo > ready; while :; do sleep 0.01; done",
    );
    let mut agent = run.agent();
    agent.starts(1);
    run.file("ready");
    run.signal(Signal::USR1);
    run.file("usr1");
}

/// Many scripts end their processes with `trap 'kill 0' EXIT`.
#[test]
fn a_script_that_kills_its_process_group_does_not_meet_the_supervisor() {
    let run = Run::script(&[], "kill -KILL 0");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (137, ExitReason::Error));
    agent.starts(2);
}

#[test]
fn orphans_are_reaped_while_the_child_runs() {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do ( ( sleep 0.01 & ) & ); done; echo > done; sleep 1000; sleep 1000";
    let run = Run::script(&[], script);
    let mut agent = run.agent();
    agent.starts(1);
    run.file("done");
    until("only the script and its sleep are left", || {
        run.descendants().len() == 2
    });
    until("no dead process is left", || run.zombies() == 0);
}

#[test]
fn exit_0_waits_until_all_members_are_done() {
    let mut run = Run::script(&[], "exit 0");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (0, ExitReason::Completed));
    agent.starts(2);
    assert_eq!(agent.hears_exit(2), (0, ExitReason::Completed));
    agent.says(&FromAgent::Complete { attempt: 1 });
    agent.hold(2);
    assert!(!run.has_exited(), "attempt 1 is not the last");
    agent.says(&FromAgent::Complete { attempt: 2 });
    assert_eq!(run.exit_code(), Some(0));
}

#[test]
fn exit_0_does_not_wait_for_ever() {
    let mut run = Run::script(&["--complete", "0.05"], "exit 0");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (0, ExitReason::Completed));
    assert_eq!(run.exit_code(), Some(0));
}

#[test]
fn leftovers_in_shared_memory_are_unlinked_before_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("of-another"), "").unwrap();
    let shm = folder.path().to_str().unwrap();
    let run = Run::script(
        &["--shm", shm, "--clean-shm", "known"],
        &format!("echo > {shm}/nccl-1; echo > {shm}/checkpoint; echo > ready; sleep 1000"),
    );
    let mut agent = run.agent();
    agent.starts(1);
    run.file("ready");
    assert!(path("nccl-1").exists());
    agent.hold(2);
    agent.hears_arrival(2);
    assert!(!path("nccl-1").exists() && path("of-another").exists());
    assert!(path("checkpoint").exists(), "its name is unknown");
}

/// Out of memory with the kubelet's default on cgroup v2: the kernel kills the supervisor, too. The
/// segments are charged to the pod, whose folder outlives its containers.
#[test]
fn leftovers_of_a_container_that_was_killed_are_unlinked_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("of-another"), "").unwrap();
    let shm = folder.path().to_str().unwrap();
    let mut run = Run::script(
        &["--shm", shm, "--clean-shm", "known"],
        &format!("echo > {shm}/nccl-$LOCKSTEP_ATTEMPT; echo > ready; sleep 1000"),
    );
    for attempt in 1..4 {
        run.agent().starts(attempt);
        run.file("ready");
        fs::remove_file(run.path("ready")).unwrap();
        assert!(path(&format!("nccl-{attempt}")).exists());
        run.restarts();
        run.agent().hears_arrival(0);
        assert!(!path(&format!("nccl-{attempt}")).exists());
        assert!(path("of-another").exists(), "after attempt {attempt}");
    }
    assert!(run.log().contains("unlinked 1 file in shared memory"));
}

/// As the first process of a container: signals without handler are not delivered, and orphans
/// become its children in any case.
#[test]
fn the_supervisor_works_as_pid_1() {
    let unshare = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let script = format!("echo $PPID > parent; {HARD_TO_KILL}");
    let mut run = Run::new(&unshare, &[], &["sh", "-c", &script]);
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(run.file("parent"), "1");
    run.file("attempt");
    let first = run.descendants();
    agent.hold(2);
    agent.hears_arrival(2);
    let left = run.descendants();
    // The supervisor itself is a descendant of unshare.
    assert_eq!(left.len(), 1, "{left:?} of {first:?}");
    agent.starts(2);
    until("attempt 2 runs", || run.file("attempt").starts_with("2 "));
    let supervisor = rustix::process::Pid::from_raw(left[0]).unwrap();
    agent.says(&FromAgent::Hold { attempt: 3 });
    agent.hears_arrival(3);
    rustix::process::kill_process(supervisor, Signal::TERM).unwrap();
    assert_eq!(run.exit_code(), Some(143), "SIGTERM reaches pid 1");
}

#[test]
fn a_child_that_stops_telling_its_progress_is_ended_even_if_it_is_stopped_itself() {
    let script = r#"
        [ ! -e "$LOCKSTEP_PROGRESS" ] || echo "of the attempt before" > leftover
        echo 6 > "$LOCKSTEP_PROGRESS"; until [ -e seen ]; do :; done
        echo 7 5 > "$LOCKSTEP_PROGRESS"; kill -STOP $$; sleep 1000
    "#;
    let run = Run::script(&[], script);
    let mut agent = run.agent();
    let limits = ProgressLimits {
        timeout_seconds: 3,
        startup_seconds: 3,
    };
    agent.hears_arrival(0);
    for attempt in [1, 2] {
        agent.hold(attempt);
        agent.hears_arrival(attempt);
        agent.says(&release_with(attempt, Some(limits)));
        assert_eq!(agent.hears(), FromSupervisor::Started { attempt });
        let mut steps = Vec::new();
        let end = loop {
            match agent.hears() {
                FromSupervisor::Progress(told) => {
                    assert_eq!(told.attempt, attempt);
                    steps.push((told.step, told.checkpoint.map(|c| c.step)));
                    fs::write(run.path("seen"), "").unwrap();
                }
                FromSupervisor::Exited { exit, .. } => break exit,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(steps, [(6, None), (7, Some(5))]);
        let ChildExit {
            code,
            reason,
            message,
            ..
        } = end;
        assert_eq!((code, reason), (137, ExitReason::Hang));
        assert_eq!(&*message, "no progress for 3 s after step 7");
        until("it is gone", || run.descendants().is_empty());
        fs::remove_file(run.path("seen")).unwrap();
    }
    assert!(!run.path("leftover").exists());
}

#[test]
fn an_agent_of_protocol_version_1_receives_progress_without_words() {
    let script = r#"
        echo "7 5 format=$LOCKSTEP_PROGRESS_FORMAT" > "$LOCKSTEP_PROGRESS"; sleep 1000
    "#;
    let run = Run::script(&[], script);
    let received = |agent: &mut Agent| match agent.hears() {
        FromSupervisor::Progress(p) => (p.step, p.words.to_string()),
        other => panic!("{other:?}"),
    };
    let mut new = run.agent_of_version(2);
    new.starts(1);
    assert_eq!(received(&mut new), (7, "format=2".to_owned()));
    let mut old = run.agent_of_version(1);
    assert_eq!(old.hears(), FromSupervisor::Started { attempt: 1 });
    assert_eq!(received(&mut old), (7, String::new()));
}

#[test]
fn the_state_for_probes_is_written_again_until_that_succeeds() {
    let run = Run::script(&[], "sleep 1000");
    let mut agent = run.agent();
    agent.starts(1);
    until("the state is written", || {
        fs::read_to_string(run.path("state")).is_ok_and(|state| state.starts_with("running "))
    });
    // A folder in place of the temporary file of the state.
    fs::create_dir(run.path(".state.next")).unwrap();
    agent.hold(2);
    agent.hears_arrival(2);
    until("the failure is printed", || {
        run.log().contains("cannot write the state for probes")
    });
    assert!(run.file("state").starts_with("running "));
    fs::remove_dir(run.path(".state.next")).unwrap();
    until("the state is written again", || {
        run.file("state").starts_with("held ")
    });
    let failures = run.log().matches("cannot write the state").count();
    assert_eq!(failures, 1);
}

/// An entry point such as gosu, in a container that keeps SETUID and drops KILL. Only root can drop
/// capabilities.
#[test]
fn a_process_that_may_not_be_signalled_is_reported_with_a_remedy() {
    if !geteuid().is_root() {
        eprintln!("skipped: this test needs root");
        return;
    }
    let through = [
        "setpriv",
        "--bounding-set=-all,+setuid,+setgid",
        "--inh-caps=-all",
        "--",
    ];
    let script = "echo changed its user >&2; exec sleep 1000";
    let child = ["setpriv", "--reuid=1", "--clear-groups", "sh", "-c", script];
    let started = || {
        let run = Run::new(&through, &["--survivors", "1"], &child);
        let mut agent = run.agent();
        agent.starts(1);
        let changed = || run.log().contains("changed its user");
        until("the child has another user", changed);
        (run, agent)
    };
    let (run, _agent) = started();
    run.signal(Signal::TERM);
    until("the refused signal is in the log", || {
        let log = run.log();
        log.contains("cannot pass on signal 15") && log.contains("capability KILL")
    });

    let (run, mut agent) = started();
    agent.says(&FromAgent::Hold { attempt: 2 });
    let FromSupervisor::Survivors { count, .. } = agent.hears() else {
        panic!("no survivors");
    };
    assert_eq!(count, 1);
    assert!(run.log().contains("survives SIGKILL") && run.log().contains("capability KILL"));
}
