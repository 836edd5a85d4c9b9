//! Agents that connect, disconnect, stay away and misbehave.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::UNIX_EPOCH;

use lockstep_supervisor_protocol::{
    ExitReason, FromAgent, FromSupervisor, MAX_BODY, Message, SOCKET,
};

use crate::support::{PROGRAM, Run, release, until};

#[test]
fn an_agent_that_restarts_hears_how_things_are() {
    let run = Run::script(
        &[],
        "echo $LOCKSTEP_ATTEMPT > attempt; until [ -e fail ]; do sleep 0.01; done; exit 3",
    );
    let mut first = run.agent();
    let start_id = first.start_id;
    first.starts(1);
    assert_eq!(run.file("attempt"), "1");
    let child = run.descendants();
    drop(first);

    let mut second = run.agent();
    assert_eq!(second.hears(), FromSupervisor::Started { attempt: 1 });
    assert_eq!(second.start_id, start_id, "the same start of the container");
    assert!(
        run.descendants().iter().any(|pid| child.contains(pid)),
        "training went on"
    );
    drop(second);
    fs::write(run.path("fail"), "").unwrap();
    until("the child has ended", || {
        run.log().contains("attempt 1 ended with code 3")
    });

    let mut third = run.agent();
    assert_eq!(third.hears_exit(1), (3, ExitReason::Error));
    third.hold(2);
    third.hears_arrival(2);
    drop(third);

    let mut fourth = run.agent();
    assert_eq!(fourth.hears_exit(1), (3, ExitReason::Error));
    fourth.hears_arrival(2);
    fourth.says(&release(2));
    assert_eq!(fourth.hears(), FromSupervisor::Started { attempt: 2 });
}

#[test]
fn when_a_child_ended_is_said_by_the_nodes_clock_however_late_it_is_heard() {
    let millis_of = |path| {
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        let since = modified.duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(since.as_millis()).unwrap()
    };
    let run = Run::script(&[], "echo > ready; exit 42");
    let mut agent = run.agent();
    agent.starts(1);
    let at_once = agent.hears_time_of_exit();
    drop(agent);
    // Another file, because file times lag the clock by a few milliseconds.
    until("some time has passed", || {
        fs::write(run.path("later"), "").unwrap();
        millis_of(run.path("later")) > at_once + 100
    });
    let late = run.agent().hears_time_of_exit();
    assert!(at_once.abs_diff(late) <= 1, "{at_once}, then {late}");
    let started = millis_of(run.path("ready"));
    assert!(started <= at_once && at_once < millis_of(run.path("later")));
}

#[test]
fn orders_that_were_sent_before_an_agent_died_are_obeyed() {
    let run = Run::script(&[], "sleep 1000");
    let mut agent = run.agent();
    agent.starts(1);
    agent.hold(2);
    drop(agent);
    let mut next = run.agent();
    while next.hears() != (FromSupervisor::Arrived { attempt: 2 }) {}
    assert!(run.descendants().is_empty());
}

#[test]
fn of_two_agents_the_last_one_counts() {
    let run = Run::script(&[], "sleep 1000");
    let mut first = run.agent();
    first.starts(1);
    let mut stranger = run.stranger();
    let mut second = run.agent();
    assert_eq!(second.hears(), FromSupervisor::Started { attempt: 1 });
    assert_eq!(first.next(), None, "closed");
    second.starts(2);
    assert!(
        matches!(stranger.hears(), FromSupervisor::Hello { .. }),
        "who was not welcomed does not disturb"
    );
}

#[test]
fn an_agent_that_stays_away_after_a_failure_ends_the_container_with_the_childs_code() {
    let mut run = Run::script(
        &["--agent-away", "0.2"],
        "until [ -e fail ]; do sleep 0.01; done; exit 9",
    );
    let mut agent = run.agent();
    agent.starts(1);
    drop(agent);
    until("the supervisor has noticed", || {
        run.log().contains("the agent is away")
    });
    fs::write(run.path("fail"), "").unwrap();
    assert_eq!(run.exit_code(), Some(9));
}

#[test]
fn a_manager_that_decides_nothing_ends_the_container_with_the_childs_code() {
    let mut run = Run::script(&["--manager-away", "0.2"], "exit 9");
    let mut agent = run.agent();
    agent.starts(1);
    assert_eq!(agent.hears_exit(1), (9, ExitReason::Error));
    assert_eq!(run.exit_code(), Some(9));
}

#[test]
fn what_is_printed_has_no_forged_lines() {
    let run = Run::new(&[], &[], &["none\nlockstep-run: all is well"]);
    let mut agent = run.agent();
    agent.hold(1);
    while agent.hears() != (FromSupervisor::Arrived { attempt: 1 }) {}
    agent.says(&release(1));
    assert_eq!(agent.hears_exit(1), (127, ExitReason::StartError));
    until("it is printed", || {
        run.log().contains("none lockstep-run: all is well")
    });
}

/// Invalid frames, each on its own connection. Afterwards an agent still works.
#[test]
fn connections_that_break_the_protocol_are_closed() {
    let run = Run::script(&[], "sleep 1000");
    let welcome = FromAgent::Welcome { version: 1 }.encode();
    let welcomed = |frame: &[u8]| [&welcome, frame].concat();
    let broken = [
        FromAgent::Hold { attempt: 1 }.encode(),
        release(1).encode(),
        FromAgent::Welcome { version: 3 }.encode(),
        u32::MAX.to_be_bytes().to_vec(),
        vec![0; 100],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        welcomed(&(MAX_BODY as u32 + 1).to_be_bytes()),
        welcomed(&[0, 0, 0, 1, 200]),
        welcomed(&FromSupervisor::Arrived { attempt: 1 }.encode()),
    ];
    for bytes in broken {
        let mut agent = run.stranger();
        agent.writes(&bytes);
        while agent.next().is_some() {}
    }
    let mut agent = run.agent();
    agent.starts(1);
}

#[test]
fn frames_in_pieces_and_many_at_once_are_understood() {
    let run = Run::script(&[], "sleep 1000");
    let mut agent = run.stranger();
    assert!(matches!(agent.hears(), FromSupervisor::Hello { .. }));
    for byte in (FromAgent::Welcome { version: 1 }).encode() {
        agent.writes(&[byte]);
    }
    agent.hears_arrival(0);
    agent.writes(&[FromAgent::Hold { attempt: 1 }.encode(), release(1).encode()].concat());
    agent.hears_arrival(1);
    assert_eq!(agent.hears(), FromSupervisor::Started { attempt: 1 });
}

#[test]
fn connections_that_say_nothing_are_pushed_out() {
    let run = Run::script(&[], "sleep 1000");
    let mut silent: Vec<_> = (0..10).map(|_| run.stranger()).collect();
    let mut agent = run.agent();
    agent.starts(1);
    let mut first = silent.remove(0);
    while first.next().is_some() {}
}

#[test]
fn a_socket_that_was_removed_comes_back() {
    let run = Run::script(&[], "sleep 1000");
    drop(run.agent());
    fs::remove_file(run.path(SOCKET)).unwrap();
    run.agent().starts(1);
}

#[test]
fn probes_of_a_held_container() {
    let run = Run::script(&[], "sleep 1000");
    let folder = run.folder().to_str().unwrap();
    let probe = |kind: &str, ready: &str, command: &str| {
        let args = ["probe", kind, "--dir", folder];
        let readiness: &[&str] = if kind == "readiness" {
            &["--ready-while-held", ready]
        } else {
            &[]
        };
        let status = Command::new(PROGRAM)
            .args(args)
            .args(readiness)
            .args(["--", command])
            .status()
            .unwrap();
        status.code()
    };
    let mut agent = run.agent();
    agent.hears_arrival(0);
    assert_eq!(
        ["liveness", "startup"].map(|kind| probe(kind, "", "false")),
        [Some(0), Some(0)]
    );
    assert_eq!(
        probe("readiness", "1000", "true"),
        Some(1),
        "it never was ready"
    );
    agent.starts(1);
    for (command, code) in [
        ("true", Some(0)),
        ("false", Some(1)),
        ("no-such-program", Some(127)),
    ] {
        assert_eq!(
            ["liveness", "startup", "readiness"].map(|kind| probe(kind, "0", command)),
            [code; 3]
        );
    }
    agent.hold(2);
    agent.hears_arrival(2);
    assert_eq!(probe("liveness", "", "false"), Some(0));
    assert_eq!(
        (
            probe("readiness", "1000", "false"),
            probe("readiness", "0", "true")
        ),
        (Some(0), Some(1))
    );
}

#[test]
fn the_init_container_can_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("lockstep-run");
    for _ in 0..2 {
        assert!(
            Command::new(PROGRAM)
                .arg("init")
                .arg(folder.path())
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(
            fs::metadata(&copy).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }
    let version = Command::new(&copy).arg("version").output().unwrap();
    assert!(
        String::from_utf8(version.stdout)
            .unwrap()
            .starts_with("lockstep-run ")
    );
}

#[test]
fn a_wrong_command_line_is_the_supervisors_own_failure() {
    let status = |args: &[&str]| {
        Command::new(PROGRAM)
            .args(args)
            .output()
            .unwrap()
            .status
            .code()
    };
    assert_eq!(status(&["exec"]), Some(125));
    assert_eq!(status(&["init", "/no/such/folder"]), Some(125));
    assert_eq!(status(&["help"]), Some(0));
}
