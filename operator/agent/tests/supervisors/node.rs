//! A node for the links: a kubelet's folder and the members' pods.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use chrono::DateTime;
use lockstep_agent::metrics::Metrics;
use lockstep_agent::supervisors::{SupervisorLinks, Supervisors};
use lockstep_api::restart_order::{CoordinatorAddress, SavePolicyOrder};
use lockstep_api::workload::CheckpointSignal;
use lockstep_node::{
    ChildEnd, NodePod, ObservedContainer, SupervisorCommand, SupervisorMessage, SupervisorState,
};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

/// Time limit of a failed test. No passing test waits for it.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(2);

pub async fn becomes(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(LOOK).await;
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "not within {PATIENCE:?}: {what}");
}

pub struct Node {
    folder: TempDir,
    kubelet: PathBuf,
    pub links: SupervisorLinks,
    pub pods: Vec<NodePod>,
    metrics: Registry,
}

impl Node {
    /// Creates pods with these UIDs, each with one running container.
    pub fn new(uids: &[&str]) -> Self {
        Self::within("kubelet", uids)
    }

    /// Uses a kubelet's folder beneath the test's folder.
    pub fn within(kubelet: &str, uids: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = folder.path().join(kubelet);
        fs::create_dir_all(kubelet.join("pods")).unwrap();
        let (links, metrics) = start(&kubelet);
        let mut node = Self {
            folder,
            kubelet,
            links,
            pods: Vec::new(),
            metrics,
        };
        for uid in uids {
            fs::create_dir_all(node.volume(uid)).unwrap();
            node.pods.push(pod(uid));
        }
        node
    }

    /// Ends all links and starts again, as in a restart of the agent.
    pub fn restart_agent(&mut self) {
        (self.links, self.metrics) = start(&self.kubelet);
        for pod in &mut self.pods {
            pod.supervisor = None;
        }
    }

    /// Simulates the end of the pod's container and the start of the next.
    pub fn restart_container(&mut self, index: usize) {
        let NodePod {
            uid, containers, ..
        } = &mut self.pods[index];
        containers[0].restarts += 1;
        containers[0].id = format!("{uid}-{}", containers[0].restarts);
    }

    pub fn volume(&self, uid: &str) -> PathBuf {
        self.kubelet
            .join("pods")
            .join(uid)
            .join("volumes/kubernetes.io~empty-dir/lockstep")
    }

    pub fn elsewhere(&self) -> PathBuf {
        let folder = self.folder.path().join("elsewhere");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Looks after each notification until the pods have these states.
    pub async fn sees(&mut self, wanted: &[Option<SupervisorState>]) {
        self.sees_that(|states| states == wanted, || format!("{wanted:?}"))
            .await;
    }

    pub async fn sees_one(&mut self, index: usize, wanted: &SupervisorState) {
        let text = || format!("{wanted:?} of pod {index}");
        self.sees_that(|states| states[index].as_ref() == Some(wanted), text)
            .await;
    }

    pub async fn sees_that(
        &mut self,
        holds: impl Fn(&[Option<SupervisorState>]) -> bool,
        what: impl Fn() -> String,
    ) {
        let seeing = async {
            loop {
                self.links.observe(&mut self.pods);
                let states: Vec<_> = self.pods.iter().map(state).collect();
                if holds(&states) {
                    return;
                }
                self.links.changed().await;
            }
        };
        let seen = timeout(PATIENCE, seeing).await;
        assert!(
            seen.is_ok(),
            "not within {PATIENCE:?}: {}; it is {:?}",
            what(),
            self.pods
        );
    }

    pub fn send(&mut self, index: usize, command: SupervisorCommand) -> Option<Duration> {
        let pod_uid = self.pods[index].uid.clone();
        self.links.send(&[SupervisorMessage { pod_uid, command }])
    }

    /// Orders the pod to an attempt and releases it.
    pub async fn starts(&mut self, index: usize, attempt: i64) {
        self.send(index, SupervisorCommand::Hold { attempt });
        let exit = state(&self.pods[index]).and_then(|s| s.exit);
        self.sees_one(
            index,
            &SupervisorState {
                exit,
                ..held(attempt)
            },
        )
        .await;
        self.send(index, release(attempt));
        self.sees_one(index, &running(attempt)).await;
    }

    pub fn counts(&self, metric: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        let metric = format!("lockstep_agent_supervisor_{metric} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&metric));
        line.unwrap().parse().unwrap()
    }

    pub async fn counted(&self, metric: &str, at_least: u64) {
        let what = format!("{metric} is {at_least} or more");
        becomes(&what, || self.counts(metric) >= at_least).await;
    }

    pub async fn has_links(&self, count: u64) {
        becomes(&format!("{count} links are up"), || {
            self.counts("links") == count
        })
        .await;
    }
}

fn start(kubelet: &std::path::Path) -> (SupervisorLinks, Registry) {
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    let random = fastrand::Rng::with_seed(1);
    let debounce = Duration::from_millis(1);
    let links = SupervisorLinks::new(kubelet, None, debounce, random, &metrics);
    assert_eq!(links.out_of_reach(), None);
    (links, registry)
}

fn pod(uid: &str) -> NodePod {
    let container = ObservedContainer {
        id: format!("{uid}-0"),
        restarts: 0,
        created_at: DateTime::UNIX_EPOCH,
        exit: None,
    };
    NodePod {
        uid: uid.to_owned(),
        containers: vec![container],
        supervised: true,
        ..NodePod::default()
    }
}

/// Without a message from the supervisor yet.
fn linked() -> SupervisorState {
    SupervisorState {
        takes_requests: true,
        ..SupervisorState::default()
    }
}

pub fn held(attempt: i64) -> SupervisorState {
    SupervisorState {
        held: Some(attempt),
        ..linked()
    }
}

pub fn running(attempt: i64) -> SupervisorState {
    SupervisorState {
        running: Some(attempt),
        ..linked()
    }
}

/// State of a pod's supervisor, without the time of the child's exit.
fn state(pod: &NodePod) -> Option<SupervisorState> {
    let mut state = pod.supervisor.clone()?;
    if let Some(end) = &mut state.exit {
        end.at = DateTime::UNIX_EPOCH;
    }
    Some(state)
}

/// Not on the way to a barrier, after this exit of the child.
pub fn ended(attempt: i64, code: i32, reason: &str) -> SupervisorState {
    SupervisorState {
        exit: Some(ChildEnd {
            message: String::new(),
            attempt,
            at: DateTime::UNIX_EPOCH,
            code,
            reason: reason.to_owned(),
        }),
        ..linked()
    }
}

pub fn release(attempt: i64) -> SupervisorCommand {
    SupervisorCommand::Release {
        attempt,
        coordinator: Some(CoordinatorAddress {
            pod_ip: "10.0.0.7".to_owned(),
            port: 29_500,
        }),
        peers: vec!["workers/0/0-1".to_owned()],
        progress: None,
        checkpoint: Some(SavePolicyOrder {
            signal: Some(CheckpointSignal::Usr1),
            timeout_seconds: 60,
            hold_stop_seconds: None,
        }),
    }
}
