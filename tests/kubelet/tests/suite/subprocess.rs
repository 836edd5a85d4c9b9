//! Containers as real child processes.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of a test fails the test by panicking"
)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::DateTime;
use lockstep_kubelet::clock::Clock;
use lockstep_kubelet::latency::LatencyProfile;
use lockstep_kubelet::model::{Action, PodDesc, PodView, SandboxView, State};
use lockstep_kubelet::runtime::subprocess::Host;
use lockstep_kubelet::runtime::{
    Addresses, Changed, Ended, Fault, Reaper, Runtime, Subprocess, Table,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Limit for each of these programs on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

static NEXT: AtomicU32 = AtomicU32::new(0);

struct Node {
    runtime: Subprocess,
    changes: mpsc::UnboundedReceiver<Changed>,
    folder: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn node() -> Node {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder =
        std::env::temp_dir().join(format!("lockstep-subprocess-{}-{n}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let host = Host {
        folder: folder.clone(),
        reaper: Arc::new(Reaper::start().unwrap()),
        addresses: Arc::new(Addresses::of_this_process()),
    };
    let (change, changes) = mpsc::unbounded_channel();
    let clock = Clock::starting_at(DateTime::UNIX_EPOCH);
    let runtime = Subprocess::new(
        "n",
        Table::new(0, change),
        LatencyProfile::zero(),
        clock,
        host,
    );
    Node {
        runtime,
        changes,
        folder,
    }
}

fn pod(name: &str, script: &str, env: &Value) -> Arc<PodDesc> {
    let spec = json!({
        "hostname": name, "subdomain": "svc", "volumes": [{"name": "out", "emptyDir": {}}],
        "containers": [{"name": "c", "command": ["sh", "-c", script], "env": env,
            "volumeMounts": [{"name": "out", "mountPath": "/out"}]}],
    });
    Arc::new(PodDesc {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        spec: serde_json::from_value(spec).unwrap(),
        ..PodDesc::default()
    })
}

impl Node {
    async fn until(
        &mut self,
        pod: &PodDesc,
        what: &str,
        done: impl Fn(&PodView) -> bool,
    ) -> PodView {
        let wait = async {
            loop {
                let view = self.runtime.view(&pod.uid);
                if done(&view) {
                    return view;
                }
                self.changes.recv().await.unwrap();
            }
        };
        timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("{what} does not happen"))
    }

    async fn sandbox(&mut self, pod: &Arc<PodDesc>) -> String {
        self.runtime.act(pod, &Action::CreateSandbox);
        let view = self
            .until(pod, "sandbox", |v| {
                matches!(v.sandbox, SandboxView::Ready { .. })
            })
            .await;
        let SandboxView::Ready { ip } = view.sandbox else {
            unreachable!()
        };
        ip
    }

    /// Starts the container and returns its ID after it runs.
    async fn start(&mut self, pod: &Arc<PodDesc>, attempt: i32) -> String {
        self.runtime.act(
            pod,
            &Action::Start {
                name: "c".into(),
                attempt,
            },
        );
        let at = usize::try_from(attempt).unwrap();
        let view = self
            .until(pod, "start", |v| {
                v.containers
                    .get(at)
                    .is_some_and(|c| c.state != State::Creating)
            })
            .await;
        view.containers[at].id.clone()
    }

    async fn exit_code(&mut self, pod: &PodDesc) -> i32 {
        let ended = |v: &PodView| {
            v.containers
                .last()
                .is_some_and(|c| matches!(c.state, State::Exited { .. }))
        };
        let view = self.until(pod, "end", ended).await;
        let State::Exited { exit_code, .. } = view.containers.last().unwrap().state else {
            unreachable!()
        };
        exit_code
    }

    /// Waits until the program has written a file in its volume.
    async fn output(&self, pod: &PodDesc, file: &str) -> String {
        let path = self
            .folder
            .join("n")
            .join(&pod.uid)
            .join("volumes/out")
            .join(file);
        let read = async {
            loop {
                match fs::read_to_string(&path) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        timeout(PATIENCE, read)
            .await
            .unwrap_or_else(|_| panic!("{} is not written", path.display()))
    }
}

#[tokio::test]
async fn a_program_gets_its_environment_and_volume_and_sets_the_container_exit_code() {
    let mut node = node();
    let env = json!([{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let pod = pod("a", "echo $WHO > /out/who; exit 3", &env);
    node.sandbox(&pod).await;
    node.start(&pod, 0).await;
    assert_eq!(node.exit_code(&pod).await, 3);
    assert_eq!(node.output(&pod, "who").await, "a");
}

#[tokio::test]
async fn a_volume_survives_a_restart_of_the_container_and_goes_with_the_pod() {
    let mut node = node();
    let pod = pod("a", "echo x >> /out/log; exit 1", &json!([]));
    node.sandbox(&pod).await;
    for attempt in 0..2 {
        node.start(&pod, attempt).await;
        node.exit_code(&pod).await;
    }
    assert_eq!(node.output(&pod, "log").await, "x\nx");
    node.runtime.forget(&pod.uid);
    assert!(!node.folder.join("n").join(&pod.uid).exists());
}

#[tokio::test]
async fn a_program_that_handles_sigterm_ends_with_its_own_code_within_the_grace_period() {
    let mut node = node();
    let pod = pod(
        "a",
        "trap 'exit 5' TERM; echo up > /out/up; while :; do sleep 0.05; done",
        &json!([]),
    );
    node.sandbox(&pod).await;
    let id = node.start(&pod, 0).await;
    node.output(&pod, "up").await;
    node.runtime.act(
        &pod,
        &Action::Stop {
            id,
            grace: Duration::from_mins(10),
            pre_stop: true,
        },
    );
    assert_eq!(node.exit_code(&pod).await, 5);
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_with_everything_that_it_started() {
    let mut node = node();
    let script = "trap '' TERM; (trap '' TERM; sleep 600) & echo $! > /out/child; wait; wait";
    let pod = pod("a", script, &json!([]));
    node.sandbox(&pod).await;
    let id = node.start(&pod, 0).await;
    let child = node.output(&pod, "child").await;
    node.runtime.act(
        &pod,
        &Action::Stop {
            id,
            grace: Duration::ZERO,
            pre_stop: true,
        },
    );
    assert_eq!(node.exit_code(&pod).await, 137);
    gone(&child).await;
}

#[tokio::test]
async fn when_the_nodes_end_everything_that_their_programs_started_ends() {
    let mut node = node();
    let pod = pod("a", "sleep 600 & echo $! > /out/child; wait", &json!([]));
    node.sandbox(&pod).await;
    node.start(&pod, 0).await;
    let child = node.output(&pod, "child").await;
    drop(node);
    gone(&child).await;
}

/// Waits until a process no longer runs. It can remain as a zombie if no process reaps orphans.
async fn gone(pid: &str) {
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    let gone = async {
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone)
        .await
        .unwrap_or_else(|_| panic!("process {pid} still runs"));
}

#[tokio::test]
async fn a_kill_from_outside_shows_as_137_and_other_codes_cannot_be_made_up() {
    let mut node = node();
    let pod = pod("a", "sleep 600", &json!([]));
    node.sandbox(&pod).await;
    let id = node.start(&pod, 0).await;
    assert!(node.runtime.pid(&id).is_some());
    assert!(
        node.runtime
            .inject(&Fault::End {
                id: id.clone(),
                ended: Ended::with_code(42)
            })
            .is_err()
    );
    node.runtime
        .inject(&Fault::End {
            id,
            ended: Ended::oom(),
        })
        .unwrap();
    assert_eq!(node.exit_code(&pod).await, 137);
}

#[tokio::test]
async fn a_program_that_names_a_pod_of_its_service_starts_when_that_pod_has_an_address() {
    let mut node = node();
    let second = pod(
        "second",
        "echo $PEER > /out/peer",
        &json!([{"name": "PEER", "value": "tcp:first.svc:99"}]),
    );
    let first = pod("first", "sleep 600", &json!([]));
    node.sandbox(&second).await;
    node.runtime.act(
        &second,
        &Action::Start {
            name: "c".into(),
            attempt: 0,
        },
    );
    let ip = node.sandbox(&first).await;
    assert_eq!(node.exit_code(&second).await, 0);
    assert_eq!(node.output(&second, "peer").await, format!("tcp:{ip}:99"));
}

#[tokio::test]
async fn a_missing_program_is_a_start_error() {
    let mut node = node();
    let mut pod = PodDesc::clone(&pod("a", "", &json!([])));
    pod.spec.containers[0].command = Some(vec!["/does/not/exist".into()]);
    let pod = Arc::new(pod);
    node.sandbox(&pod).await;
    node.start(&pod, 0).await;
    assert_eq!(node.exit_code(&pod).await, 128);
}
