//! Links to real supervisors.

use std::fs;
use std::time::Duration;

use chrono::DateTime;
use lockstep_agent::metrics::Metrics;
use lockstep_agent::supervisors::{SupervisorLinks, Supervisors};
use lockstep_api::restart_order::SaveRequestOrder;
use lockstep_node::{Saved, SupervisorCommand, SupervisorState};

use crate::node::{Node, ended, held, release, running};
use crate::process::Supervisor;

/// Writes its pid at each start.
const TRAINING: &str =
    "echo $$ > next; mv next pid-$LOCKSTEP_ATTEMPT; echo $LOCKSTEP_PEERS > peers; exec sleep 1000";

#[tokio::test]
async fn a_child_that_is_killed_starts_again_in_the_same_supervisor() {
    let mut node = Node::new(&["p1"]);
    let mut supervisor = Supervisor::start(&node.volume("p1"), TRAINING);
    node.sees(&[Some(held(0))]).await;
    node.starts(0, 1).await;
    let first = supervisor.line("pid-1").await;
    assert_eq!(supervisor.line("peers").await, "workers/0/0-1");
    Supervisor::kill(&first);
    let failed = ended(1, 137, "Error");
    node.sees(&[Some(failed.clone())]).await;
    node.send(0, SupervisorCommand::Hold { attempt: 2 });
    let arrived = SupervisorState {
        held: Some(2),
        ..failed
    };
    node.sees(&[Some(arrived)]).await;
    node.send(0, release(2));
    node.sees(&[Some(running(2))]).await;
    assert_ne!(supervisor.line("pid-2").await, first);
    assert!(!supervisor.has_exited());
    assert_eq!((node.counts("links"), node.counts("relinks_total")), (1, 0));
}

#[tokio::test]
async fn a_request_for_a_checkpoint_comes_back_with_the_saved_step() {
    let training = r#"trap 'echo "7 7" > $LOCKSTEP_PROGRESS' USR1; echo > next; mv next ready
        while :; do sleep 0.01; done"#;
    let mut node = Node::new(&["p1"]);
    let supervisor = Supervisor::start(&node.volume("p1"), training);
    node.sees(&[Some(held(0))]).await;
    node.starts(0, 1).await;
    supervisor.line("ready").await;
    let request = SaveRequestOrder {
        id: "a".to_owned(),
        deadline: DateTime::from_timestamp(4_000_000_000, 0).unwrap(),
        ..SaveRequestOrder::default()
    };
    node.send(
        0,
        SupervisorCommand::Checkpoint {
            attempt: 1,
            request,
        },
    );
    let saved = |states: &[Option<SupervisorState>]| {
        let answer = states[0].as_ref().and_then(|state| state.reply.clone());
        answer.is_some_and(|answer| answer.request.id == "a" && answer.saved == Saved::Step(7))
    };
    node.sees_that(saved, || "an answer".to_owned()).await;
    node.send(0, SupervisorCommand::Stop { attempt: 1 });
    let passes = |states: &[Option<SupervisorState>]| {
        states[0]
            .as_ref()
            .is_some_and(|state| state.passes_stops == 1)
    };
    node.sees_that(passes, || "an answer to Stop".to_owned())
        .await;
}

#[tokio::test]
async fn members_of_one_node_are_distinguished() {
    let uids = ["p1", "p2", "p3"];
    let mut node = Node::new(&uids);
    let supervisors = uids.map(|uid| Supervisor::start(&node.volume(uid), TRAINING));
    node.sees(&[Some(held(0)), Some(held(0)), Some(held(0))])
        .await;
    for index in 0..3 {
        node.starts(index, 1).await;
    }
    Supervisor::kill(&supervisors[1].line("pid-1").await);
    let failed = ended(1, 137, "Error");
    node.sees(&[Some(running(1)), Some(failed.clone()), Some(running(1))])
        .await;
    for index in [0, 2] {
        node.send(index, SupervisorCommand::Hold { attempt: 2 });
    }
    node.sees(&[Some(held(2)), Some(failed), Some(held(2))])
        .await;
    assert_eq!(node.counts("links"), 3);
}

#[tokio::test]
async fn supervisors_report_again_to_a_restarted_agent_and_training_continues() {
    let mut node = Node::new(&["p1", "p2"]);
    let first = Supervisor::start(&node.volume("p1"), TRAINING);
    let second = Supervisor::start(
        &node.volume("p2"),
        "until [ -e fail ]; do sleep 0.01; done; exit 3",
    );
    node.sees(&[Some(held(0)), Some(held(0))]).await;
    node.starts(0, 1).await;
    node.starts(1, 1).await;
    let pid = first.line("pid-1").await;
    // The restarted agent has not looked yet.
    node.restart_agent();
    first.prints("the agent is away").await;
    second.prints("the agent is away").await;
    fs::write(node.volume("p2").join("fail"), "").unwrap();
    second.prints("attempt 1 ended with code 3").await;
    let failed = ended(1, 3, "Error");
    node.sees(&[Some(running(1)), Some(failed)]).await;
    assert_eq!(first.line("pid-1").await, pid);
    fs::remove_file(node.volume("p2").join("fail")).unwrap();
    node.starts(1, 2).await;
}

#[tokio::test]
async fn a_restarted_supervisor_begins_without_state() {
    let mut node = Node::new(&["p1"]);
    let folder = node.volume("p1");
    let first = Supervisor::start(&folder, TRAINING);
    node.sees(&[Some(held(0))]).await;
    node.starts(0, 1).await;
    drop(first);
    node.sees(&[None]).await;
    let second = Supervisor::start(&folder, TRAINING);
    node.sees(&[Some(held(0))]).await;
    assert_eq!((node.counts("links"), node.counts("relinks_total")), (1, 1));
    node.starts(0, 2).await;

    // A later container is never mistaken for the earlier one, in any order of observation.
    node.restart_container(0);
    node.links.observe(&mut node.pods);
    assert_eq!(node.pods[0].supervisor, None);
    drop(second);
    let _third = Supervisor::start(&folder, TRAINING);
    node.sees(&[Some(held(0))]).await;
}

#[tokio::test]
async fn an_agent_waits_for_supervisors_that_are_yet_to_come() {
    let mut node = Node::new(&["p1"]);
    let container = node.pods[0].containers.remove(0);
    node.sees(&[None]).await;
    node.pods[0].containers.push(container);
    fs::remove_dir(node.volume("p1")).unwrap();
    node.links.observe(&mut node.pods);
    fs::create_dir(node.volume("p1")).unwrap();
    let _supervisor = Supervisor::start(&node.volume("p1"), TRAINING);
    node.sees(&[Some(held(0))]).await;
    assert_eq!(node.counts("links"), 1);
}

#[tokio::test]
async fn links_end_with_their_pods_and_with_the_agent() {
    let mut node = Node::new(&["p1", "p2", "p3"]);
    let uids = ["p1", "p2", "p3"];
    let [first, second, third] = uids.map(|uid| Supervisor::start(&node.volume(uid), "sleep 1000"));
    node.sees(&[Some(held(0)), Some(held(0)), Some(held(0))])
        .await;
    node.pods.remove(0);
    node.links.observe(&mut node.pods);
    node.has_links(2).await;
    first.prints("the agent is away").await;
    // Without a running container there is no supervisor.
    node.pods[0].containers.clear();
    node.links.observe(&mut node.pods);
    node.has_links(1).await;
    second.prints("the agent is away").await;
    node.restart_agent();
    third.prints("the agent is away").await;
}

#[tokio::test]
async fn pods_of_other_tiers_are_left_alone() {
    let mut node = Node::new(&["p1", "p2"]);
    let uids = ["p1", "p2"];
    let _supervisors = uids.map(|uid| Supervisor::start(&node.volume(uid), TRAINING));
    node.pods[1].supervised = false;
    node.sees(&[Some(held(0)), None]).await;
    node.pods[1].supervised = true;
    node.sees(&[Some(held(0)), Some(held(0))]).await;
    node.pods[1].supervised = false;
    node.sees(&[Some(held(0)), None]).await;
    node.has_links(1).await;
}

#[tokio::test]
async fn a_folder_that_is_not_that_of_the_agents_own_kubelet_is_out_of_reach() {
    let folder = tempfile::tempdir().unwrap();
    let out_of_reach = |own: Option<&str>| {
        let random = fastrand::Rng::with_seed(1);
        let metrics = Metrics::default();
        SupervisorLinks::new(folder.path(), own, Duration::ZERO, random, &metrics).out_of_reach()
    };
    let pods = folder.path().join("pods").display().to_string();
    let why = out_of_reach(None).unwrap();
    assert_eq!(
        why,
        format!("{pods}: No such file or directory (os error 2)")
    );
    fs::create_dir_all(folder.path().join("pods/another")).unwrap();
    assert_eq!(out_of_reach(None), None);
    let why = out_of_reach(Some("own")).unwrap();
    assert!(
        why.starts_with(&format!("{pods}: own: No such file")),
        "{why}"
    );
    fs::create_dir(folder.path().join("pods/own")).unwrap();
    assert_eq!(out_of_reach(Some("own")), None);
}

#[tokio::test]
async fn a_path_that_is_longer_than_that_of_a_socket_is_reached() {
    let kubelet = "k".repeat(100);
    let mut node = Node::within(&kubelet, &["0f3b6a51-7c1e-4a3e-9d0a-0f3b6a517c1e"]);
    let folder = node.volume("0f3b6a51-7c1e-4a3e-9d0a-0f3b6a517c1e");
    assert!(folder.as_os_str().len() > 107);
    let _supervisor = Supervisor::start(&folder, TRAINING);
    node.sees(&[Some(held(0))]).await;
    node.starts(0, 1).await;
}

#[tokio::test]
async fn all_words_are_understood() {
    let mut node = Node::new(&["p1", "p2"]);
    let mut done = Supervisor::start(&node.volume("p1"), "exit 0");
    let mut failed = Supervisor::start(&node.volume("p2"), "exit 7");
    node.sees(&[Some(held(0)), Some(held(0))]).await;
    for index in [0, 1] {
        node.send(index, SupervisorCommand::Hold { attempt: 1 });
    }
    node.sees(&[Some(held(1)), Some(held(1))]).await;
    for index in [0, 1] {
        node.send(index, release(1));
    }
    let exit = |code, reason| Some(ended(1, code, reason));
    node.sees(&[exit(0, "Completed"), exit(7, "Error")]).await;
    node.send(0, SupervisorCommand::Complete { attempt: 1 });
    node.send(1, SupervisorCommand::Exit { attempt: 1 });
    node.sees(&[None, None]).await;
    assert_eq!((done.exit_code().await, failed.exit_code().await), (0, 7));
}
