//! The whole agent over the socket: orders, persisted records, kills.

use super::*;
use crate::tests::{Rig, Shared};

/// An agent and a runtime with one pod of workload `w1` (`c1`, and sidecar `s1`) and one of `w2`
/// (`d1`).
struct Node {
    fake: Fake,
    rig: Rig,
}

impl Node {
    fn new(deadline: Duration) -> Self {
        let mut fake = Fake::new();
        fake.start();
        {
            let mut world = fake.world.lock();
            world.pod("p1", "w1", "0");
            world.run("p1", "main", "c1");
            world.run("p1", "side", "s1");
            world.pod("p2", "w2", "0");
            world.run("p2", "main", "d1");
        }
        let mut node = Self {
            fake,
            rig: Rig::without_agent(),
        };
        node.start(deadline);
        node
    }

    fn start(&mut self, deadline: Duration) {
        let runtime = connect(
            &self.fake,
            Intervals {
                deadline,
                ..intervals(false)
            },
        );
        self.rig.start_with(runtime);
    }

    async fn settled(&self) {
        let shared: &Shared = &self.rig.shared;
        eventually("containers released", || shared.recorded("p1").is_some()).await;
    }

    fn stops(&self) -> Vec<String> {
        let mut stops = self.fake.world.lock().stops.clone();
        stops.sort();
        stops
    }
}

/// A deadline that no call reaches.
const AMPLE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn an_order_kills_all_containers_of_the_members_of_its_workload_once() {
    let node = Node::new(AMPLE);
    node.settled().await;
    node.rig.order(2);
    eventually("stopped", || node.stops() == ["c1", "s1"]).await;
    {
        let mut world = node.fake.world.lock();
        world.run("p1", "main", "c2");
        world.run("p1", "side", "s2");
    }
    eventually("arrived", || {
        node.rig.status()["arrivals"][0]["pods"][0]["containerID"] == "c2"
    })
    .await;
    assert_eq!(node.rig.status()["reports"][0]["kind"], "Stopped");
    assert_eq!(
        node.stops(),
        ["c1", "s1"],
        "no younger container, none of another workload"
    );
    assert!(node.rig.log().contains(&"intent c1".to_owned()));
}

#[tokio::test]
async fn a_container_replaced_since_the_last_list_is_not_found_and_its_successor_runs_on() {
    let node = Node::new(AMPLE);
    node.settled().await;
    node.fake
        .world
        .lock()
        .replaced
        .insert("c1".into(), "c2".into());
    node.rig.order(2);
    eventually("arrived", || {
        node.rig.status()["arrivals"][0]["pods"][0]["containerID"] == "c2"
    })
    .await;
    assert_eq!(node.stops(), ["c1", "s1"]);
    assert_eq!(
        node.rig.status()["reports"][0]["exitCode"],
        7,
        "its own code, which only the event told"
    );
}

#[tokio::test]
async fn a_stop_that_hangs_is_tried_again_after_its_deadline_and_holds_up_no_other() {
    let node = Node::new(Duration::from_millis(500));
    node.settled().await;
    node.fake.world.lock().hanging.insert("c1".into());
    node.rig.order(2);
    eventually("asked", || node.stops().contains(&"c1".to_owned())).await;
    // While that stop is in flight, the agent stops the sidecar and reports another exit.
    node.fake.world.lock().exit("d1", 3);
    eventually("reported", || {
        node.rig.status()["reports"][0]["exitCode"] == 3
    })
    .await;
    eventually("asked again", || {
        node.stops().iter().filter(|id| *id == "c1").count() == 2
    })
    .await;
    assert_eq!(node.stops().iter().filter(|id| *id == "s1").count(), 1);
    node.fake.world.lock().hanging.clear();
    eventually("ended", || {
        node.rig.status()["reports"][1]["kind"] == "Stopped"
    })
    .await;
}

#[tokio::test]
async fn a_restart_of_the_runtime_in_the_middle_of_a_restart_kills_nothing_twice() {
    let mut node = Node::new(Duration::from_millis(500));
    node.settled().await;
    node.fake.world.lock().hanging.insert("c1".into());
    node.rig.order(2);
    eventually("asked", || node.stops().contains(&"c1".to_owned())).await;
    node.fake.crash();
    {
        // The kill succeeded, but its response was lost.
        let mut world = node.fake.world.lock();
        world.hanging.clear();
        world.exit("c1", 137);
        world.exit("s1", 137);
        world.run("p1", "main", "c2");
        world.upgrades = 1;
    }
    node.fake.start();
    eventually("arrived", || {
        node.rig.status()["arrivals"][0]["pods"][0]["containerID"] == "c2"
    })
    .await;
    let stops = node.stops();
    assert_eq!(
        stops.iter().filter(|id| *id == "c1").count(),
        1,
        "{stops:?}"
    );
    assert!(!stops.contains(&"c2".to_owned()), "{stops:?}");
    eventually("the new version is told", || {
        node.rig.status()["runtime"] == "fake 1.1"
    })
    .await;
    assert_eq!(node.rig.readiness_of_runtime(), None);
}

#[tokio::test]
async fn an_agent_that_was_killed_between_two_stops_stops_the_rest_and_nothing_younger() {
    let mut node = Node::new(AMPLE);
    node.settled().await;
    node.fake
        .world
        .lock()
        .hanging
        .extend(["c1".to_owned(), "s1".to_owned()]);
    node.rig.order(2);
    eventually("asked", || node.stops() == ["c1", "s1"]).await;
    node.rig.kill();
    {
        let mut world = node.fake.world.lock();
        world.hanging.clear();
        world.exit("s1", 137);
        world.stops.clear();
    }
    node.start(AMPLE);
    eventually("stopped", || node.stops() == ["c1"]).await;
    node.fake.world.lock().run("p1", "main", "c2");
    eventually("arrived", || {
        node.rig.status()["arrivals"][0]["pods"][0]["containerID"] == "c2"
    })
    .await;
    assert_eq!(node.stops(), ["c1"]);
}
