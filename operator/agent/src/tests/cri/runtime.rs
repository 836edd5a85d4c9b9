//! The client's handling of lists, events and failures.

use super::*;
use crate::cri::api::{ContainerState, PodSandboxMetadata};

/// Name, id and exit code of the containers of the only pod, sorted.
fn shown(sandboxes: &[Sandbox]) -> Vec<(String, String, Option<i32>)> {
    assert_eq!(sandboxes.len(), 1, "{sandboxes:?}");
    let mut all = Vec::new();
    for (name, containers) in &sandboxes[0].containers {
        all.extend(
            containers
                .iter()
                .map(|c| (name.clone(), c.id.clone(), c.exit.as_ref().map(|e| e.code))),
        );
    }
    all.sort();
    all
}

fn container(name: &str, id: &str, code: Option<i32>) -> (String, String, Option<i32>) {
    (name.to_owned(), id.to_owned(), code)
}

/// A runtime with one pod and a running container `c1` named `main`.
fn one_pod() -> Fake {
    let mut fake = Fake::new();
    fake.start();
    let mut world = fake.world.lock();
    world.pod("p1", "w1", "0");
    world.run("p1", "main", "c1");
    drop(world);
    fake
}

#[tokio::test]
async fn members_are_listed_with_their_containers_and_nothing_else_is() {
    let fake = one_pod();
    {
        let mut world = fake.world.lock();
        world.run("p1", "side", "c2");
        world.exit("c2", 3);
        world.run("p1", "main", "created");
        world
            .containers
            .get_mut("created")
            .unwrap()
            .1
            .set_state(ContainerState::ContainerCreated);
        world.run("p1", "odd", "unknown");
        world
            .containers
            .get_mut("unknown")
            .unwrap()
            .1
            .set_state(ContainerState::ContainerUnknown);
        world.run("gone", "main", "orphan");
        world.pod("system", "w1", "1");
        world.sandboxes[1].metadata = Some(PodSandboxMetadata {
            uid: "system".into(),
            namespace: "kube-system".into(),
        });
        world.run("system", "main", "c3");
        world.pod("foreign", "w1", "2");
        world.sandboxes[2].labels.clear();
        world.run("foreign", "main", "c4");
    }
    let mut runtime = connect(&fake, intervals(false));
    let sandboxes = runtime.list().await.unwrap();
    let expected = [
        container("main", "c1", None),
        container("odd", "unknown", None),
        container("side", "c2", Some(3)),
    ];
    assert_eq!(shown(&sandboxes), expected);
    assert_eq!(sandboxes[0].pod_uid, "p1");
    assert_eq!(
        sandboxes[0].annotations["training.lockstep.dev/attempt"],
        "1"
    );
    for _ in 0..3 {
        runtime.list().await.unwrap();
    }
    assert_eq!(
        fake.world.lock().calls["ContainerStatus"],
        1,
        "an end is final: asked for once"
    );
}

#[tokio::test]
async fn a_pod_whose_sandbox_was_replaced_is_one_pod() {
    let fake = one_pod();
    {
        let mut world = fake.world.lock();
        world.exit("c1", 137);
        world.pod("p1b", "w1", "0");
        world.sandboxes[1].metadata.as_mut().unwrap().uid = "p1".into();
        world.sandboxes[1]
            .annotations
            .insert("training.lockstep.dev/attempt".into(), "2".into());
        world.run("p1b", "main", "c2");
    }
    let sandboxes = connect(&fake, intervals(false)).list().await.unwrap();
    assert_eq!(
        shown(&sandboxes),
        [
            container("main", "c1", Some(137)),
            container("main", "c2", None)
        ]
    );
    assert_eq!(
        sandboxes[0].annotations["training.lockstep.dev/attempt"],
        "2"
    );
}

#[tokio::test]
async fn where_the_runtime_has_no_events_it_is_listed_until_something_changes() {
    let fake = one_pod();
    fake.world.lock().no_events = true;
    let mut runtime = connect(&fake, intervals(false));
    runtime.list().await.unwrap();
    let exit = async {
        eventually("refused", || {
            fake.world.lock().calls.contains_key("GetContainerEvents")
        })
        .await;
        fake.world.lock().exit("c1", 9);
    };
    let (sandboxes, ()) = tokio::join!(listed(&mut runtime, |s| shown(s)[0].2.is_some()), exit);
    assert_eq!(shown(&sandboxes), [container("main", "c1", Some(9))]);
    let lists = fake.world.lock().calls["ListPodSandbox"];
    assert!(
        lists <= 4,
        "pods are listed again only when a container changed, not {lists} times"
    );
}

#[tokio::test]
async fn the_only_event_stream_of_an_older_containerd_is_left_to_the_kubelet() {
    let fake = one_pod();
    fake.world.lock().containerd = Some("v1.7.27");
    let mut runtime = connect(&fake, intervals(false));
    runtime.list().await.unwrap();
    let exit = async {
        eventually("the version is read", || {
            fake.world.lock().calls.contains_key("Version")
        })
        .await;
        fake.world.lock().exit("c1", 9);
    };
    let (sandboxes, ()) = tokio::join!(listed(&mut runtime, |s| shown(s)[0].2.is_some()), exit);
    assert_eq!(shown(&sandboxes), [container("main", "c1", Some(9))]);
    assert!(!fake.world.lock().calls.contains_key("GetContainerEvents"));
}

#[tokio::test]
async fn an_event_wakes_the_agent_with_the_exit_code_of_an_already_removed_container() {
    let fake = one_pod();
    let mut runtime = connect(&fake, intervals(true));
    runtime.list().await.unwrap();
    let removal = async {
        eventually("subscribed", || fake.world.lock().is_subscribed()).await;
        let mut world = fake.world.lock();
        world.exit("c1", 42);
        world.containers.remove("c1");
        world.run("p1", "main", "c2");
    };
    let (sandboxes, ()) = tokio::join!(listed(&mut runtime, |s| shown(s).len() == 2), removal);
    assert_eq!(
        shown(&sandboxes),
        [
            container("main", "c1", Some(42)),
            container("main", "c2", None)
        ]
    );
    // The exits stay listed until the pod is gone.
    assert_eq!(shown(&runtime.list().await.unwrap()).len(), 2);
    fake.world.lock().sandboxes.clear();
    assert!(runtime.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_container_that_starts_while_the_runtime_is_listed_is_not_missed() {
    let fake = one_pod();
    let mut runtime = connect(&fake, intervals(true));
    let subscribed = async {
        eventually("subscribed", || fake.world.lock().is_subscribed()).await;
        fake.world.lock().run("p1", "main", "c2");
    };
    tokio::join!(listed(&mut runtime, |s| shown(s).len() == 2), subscribed);
    for n in 3..30 {
        fake.world.lock().starts_after_list = Some(format!("c{n}"));
        listed(&mut runtime, |s| shown(s).len() == n).await;
    }
}

#[tokio::test]
async fn events_of_pods_that_are_not_members_do_not_wake_the_agent() {
    let fake = one_pod();
    let mut runtime = connect(&fake, intervals(true));
    runtime.list().await.unwrap();
    let other = async {
        eventually("subscribed", || fake.world.lock().is_subscribed()).await;
        let mut world = fake.world.lock();
        world.pod("other", "", "");
        world.sandboxes[1].labels.clear();
        for id in 0..300 {
            world.run("other", "main", &format!("o{id}"));
        }
        world.exit("c1", 1);
    };
    let (_, ()) = tokio::join!(listed(&mut runtime, |s| shown(s)[0].2.is_some()), other);
    let lists = fake.world.lock().calls["ListPodSandbox"];
    // The first listing, the listing at the start of the wait, and at most two for the exit.
    assert!(lists <= 4, "{lists} listings for one exit");
}

#[tokio::test]
async fn events_that_the_runtime_kept_from_before_bring_nothing_back() {
    let fake = one_pod();
    {
        let mut world = fake.world.lock();
        world.pod("old", "w1", "1");
        world.run("old", "main", "c0");
        world.exit("c0", 1);
        // A removed pod, and the start of a container that has ended since.
        world.sandboxes.pop();
        world.containers.remove("c0");
        world.exit("c1", 5);
        world.containers.remove("c1");
        world.run("p1", "main", "c2");
        assert!(world.queued.len() > 3);
    }
    let mut runtime = connect(&fake, intervals(true));
    let sandboxes = listed(&mut runtime, |s| {
        s.iter().any(|p| p.containers["main"].len() > 1)
    })
    .await;
    assert_eq!(
        shown(&sandboxes),
        [
            container("main", "c1", Some(5)),
            container("main", "c2", None)
        ]
    );
}

#[tokio::test]
async fn a_socket_that_comes_late_is_waited_for() {
    let mut fake = Fake::new();
    let mut runtime = connect(&fake, intervals(false));
    let error = runtime.version().await.unwrap_err().to_string();
    assert!(
        error.contains("Status") && error.contains("No such file"),
        "{error}"
    );
    fake.start();
    fake.world.lock().not_ready = true;
    let error = runtime.version().await.unwrap_err().to_string();
    assert!(error.contains("RuntimeReady is false"), "{error}");
    fake.world.lock().not_ready = false;
    assert_eq!(runtime.version().await.unwrap(), "fake 1.0");
}

#[tokio::test]
async fn after_a_restart_of_the_runtime_calls_and_events_come_back() {
    let mut fake = one_pod();
    let mut runtime = connect(&fake, intervals(false));
    runtime.list().await.unwrap();
    let subscribed = async {
        eventually("subscribed", || fake.world.lock().is_subscribed()).await;
        fake.world.lock().run("p1", "side", "c2");
    };
    tokio::join!(listed(&mut runtime, |s| shown(s).len() == 2), subscribed);
    fake.crash();
    tokio::time::timeout(LIMIT, runtime.changed())
        .await
        .expect("the lost stream wakes the agent");
    assert!(runtime.list().await.is_err());
    fake.world.lock().exit("c1", 255);
    fake.start();
    let sandboxes = listed(&mut runtime, |s| !s.is_empty()).await;
    assert_eq!(shown(&sandboxes)[0], container("main", "c1", Some(255)));
    let again = async {
        eventually("subscribed again", || fake.world.lock().is_subscribed()).await;
        fake.world.lock().exit("c2", 1);
    };
    tokio::join!(listed(&mut runtime, |s| shown(s)[1].2.is_some()), again);
}

#[tokio::test]
async fn a_container_that_vanishes_between_two_calls_is_left_out() {
    let fake = one_pod();
    {
        let mut world = fake.world.lock();
        world.exit("c1", 1);
        world.vanishing.insert("c1".into());
    }
    let mut runtime = connect(&fake, intervals(false));
    assert!(shown(&runtime.list().await.unwrap()).is_empty());
    runtime.stop("c1").await.expect("what is gone is stopped");
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_its_deadline() {
    let fake = one_pod();
    fake.world.lock().hanging.insert("c1".into());
    let runtime = connect(
        &fake,
        Intervals {
            deadline: Duration::from_millis(100),
            ..intervals(false)
        },
    );
    let error = tokio::time::timeout(LIMIT, runtime.stop("c1"))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "container runtime did not answer StopContainer in time"
    );
}

#[tokio::test]
async fn a_list_beyond_the_default_limit_of_the_protocol_is_read() {
    let fake = one_pod();
    {
        let mut world = fake.world.lock();
        for pod in 0..200 {
            world.pod(&format!("big{pod}"), "w1", "0");
            let note = "x".repeat(40_000);
            world
                .sandboxes
                .last_mut()
                .unwrap()
                .annotations
                .insert("note".into(), note);
        }
    }
    assert_eq!(
        connect(&fake, intervals(false)).list().await.unwrap().len(),
        201
    );
}
