//! The links of one node: one for each running training container with a supervisor.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_node::{NodePod, SupervisorCommand, SupervisorMessage, SupervisorState};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

use super::Supervisors;
use super::frames::{frame, named};
use super::link::{Linking, Slot};
use super::socket::check_folder;
use crate::metrics::Metrics;

/// Shortest time between two identical messages to one supervisor.
const REPEAT: Duration = Duration::from_secs(1);

/// Links to the supervisors of a node through the kubelet's folder. A drop ends all links.
pub struct SupervisorLinks {
    pods: PathBuf,
    own_pod_uid: Option<String>,
    debounce: Duration,
    metrics: Metrics,
    random: fastrand::Rng,
    links: BTreeMap<String, Link>,
    tasks: JoinSet<Infallible>,
    changed: Arc<Notify>,
    woke_at: Option<Instant>,
}

impl SupervisorLinks {
    /// `kubelet`: the kubelet's folder. If it lacks the folder of the agent's own pod, it belongs
    /// to another kubelet. Changes within `debounce` wake the agent once.
    pub fn new(
        kubelet: &Path,
        own_pod_uid: Option<&str>,
        debounce: Duration,
        random: fastrand::Rng,
        metrics: &Metrics,
    ) -> Self {
        Self {
            pods: kubelet.join("pods"),
            own_pod_uid: own_pod_uid.map(str::to_owned),
            debounce,
            metrics: metrics.clone(),
            random,
            links: BTreeMap::new(),
            tasks: JoinSet::new(),
            changed: Arc::default(),
            woke_at: None,
        }
    }

    fn start(&mut self, pod_uid: &str, container_id: &str) -> Link {
        let slot = Slot::default();
        let linking = Linking {
            pods: self.pods.clone(),
            pod_uid: pod_uid.to_owned(),
            slot: slot.clone(),
            changed: self.changed.clone(),
            metrics: self.metrics.clone(),
            random: self.random.fork(),
        };
        Link {
            container_id: container_id.to_owned(),
            slot,
            sent: Sent::default(),
            looked_at: None,
            task: self.tasks.spawn(linking.run()),
        }
    }
}

impl Supervisors for SupervisorLinks {
    fn out_of_reach(&self) -> Option<String> {
        let why = check_folder(&self.pods, self.own_pod_uid.as_deref()).err()?;
        Some(format!("{}: {why}", self.pods.display()))
    }

    fn observe(&mut self, pods: &mut [NodePod]) {
        let mut kept = BTreeMap::new();
        for pod in pods {
            pod.supervisor = None;
            if !pod.supervised {
                continue;
            }
            // Each container has its own supervisor.
            let Some(container_id) = pod.newest_running().map(|c| &*c.id) else {
                continue;
            };
            let mut link = match self.links.remove(&pod.uid) {
                Some(link) if link.container_id == container_id => link,
                _ => self.start(&pod.uid, container_id),
            };
            (pod.supervisor, link.looked_at) = link.state().unzip();
            kept.insert(pod.uid.clone(), link);
        }
        self.links = kept;
        while self.tasks.try_join_next().is_some() {}
    }

    fn observe_again(&mut self, pods: &mut [NodePod]) {
        for pod in pods {
            let link = self.links.get(&pod.uid);
            let up = link.and_then(|l| l.state().filter(|(_, up)| l.looked_at == Some(*up)));
            pod.supervisor = up.map(|(state, _)| state);
        }
    }

    fn send(&mut self, messages: &[SupervisorMessage]) -> Option<Duration> {
        let now = Instant::now();
        let due = messages.iter().filter_map(|message| {
            let link = self.links.get_mut(&message.pod_uid)?;
            link.send(message, now)
        });
        let next = due.min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Returns at once for the first change. Further changes within `debounce` share one wake-up.
    async fn changed(&mut self) {
        self.changed.notified().await;
        if let Some(woke_at) = self.woke_at {
            sleep_until(woke_at + self.debounce).await;
        }
        self.woke_at = Some(Instant::now());
    }
}

struct Link {
    container_id: String,
    slot: Slot,
    sent: Sent,
    /// Number of the connection in the last call of `observe`.
    looked_at: Option<u64>,
    task: AbortHandle,
}

#[derive(Default)]
struct Sent {
    connection: u64,
    commands: Vec<(SupervisorCommand, Instant)>,
}

impl Link {
    /// The reported state, with the number of the connection.
    fn state(&self) -> Option<(SupervisorState, u64)> {
        let slot = self.slot.get();
        slot.as_ref().map(|up| (up.state.clone(), up.number))
    }

    /// Sends the message, unless it was sent within [`REPEAT`]. Returns the time of the next
    /// repetition.
    fn send(&mut self, message: &SupervisorMessage, now: Instant) -> Option<Instant> {
        let slot = self.slot.get();
        let up = slot.as_ref()?;
        if self.sent.connection != up.number {
            self.sent = Sent {
                connection: up.number,
                commands: Vec::new(),
            };
        }
        self.sent.commands.retain(|(_, again)| *again > now);
        if let Some((_, again)) = self
            .sent
            .commands
            .iter()
            .find(|(w, _)| *w == message.command)
        {
            return Some(*again);
        }
        let (command, attempt) = named(&message.command);
        match frame(&message.command) {
            // If the queue is full, the write times out and the next link repeats the message.
            Some(frame) => {
                info!(
                    pod = message.pod_uid,
                    command, attempt, "sending to a supervisor"
                );
                let _ = up.outbox.try_send(frame);
            }
            None => {
                error!(pod = message.pod_uid, command = ?message.command, "a command does not fit into a frame");
            }
        }
        let again = now + REPEAT;
        self.sent.commands.push((message.command.clone(), again));
        Some(again)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use lockstep_node::ObservedContainer;
    use tokio::sync::mpsc;

    use super::super::link::Up;
    use super::*;

    /// A link that is up, with the receiver of its outgoing frames.
    fn link() -> (
        Link,
        mpsc::Receiver<lockstep_supervisor_protocol::FromAgent>,
        JoinSet<()>,
    ) {
        let (outbox, said) = mpsc::channel(16);
        let slot = Slot::default();
        *slot.get() = Some(Up {
            state: SupervisorState::default(),
            outbox,
            number: 1,
        });
        let mut tasks = JoinSet::new();
        let link = Link {
            container_id: "c1".to_owned(),
            slot,
            sent: Sent::default(),
            looked_at: None,
            task: tasks.spawn(std::future::pending()),
        };
        (link, said, tasks)
    }

    fn hold(attempt: i64) -> SupervisorMessage {
        SupervisorMessage {
            pod_uid: "p1".to_owned(),
            command: SupervisorCommand::Hold { attempt },
        }
    }

    #[tokio::test]
    async fn a_command_is_sent_once_a_second_and_at_once_on_a_new_connection() {
        let (mut link, mut said, _tasks) = link();
        let start = Instant::now();
        let mut sent = move || std::iter::from_fn(|| said.try_recv().ok()).count();
        for _ in 0..10 {
            assert_eq!(link.send(&hold(1), start), Some(start + REPEAT));
        }
        assert_eq!(sent(), 1);
        link.send(&hold(2), start);
        assert_eq!(sent(), 1, "another command");
        let nearly = start + REPEAT - Duration::from_millis(1);
        assert_eq!(link.send(&hold(1), nearly), Some(start + REPEAT));
        assert_eq!(sent(), 0);
        let again = start + REPEAT;
        assert_eq!(link.send(&hold(1), again), Some(again + REPEAT));
        assert_eq!(sent(), 1);
        if let Some(up) = link.slot.get().as_mut() {
            up.number = 2;
        }
        link.send(&hold(1), again);
        assert_eq!(sent(), 1);
        *link.slot.get() = None;
        assert_eq!(link.send(&hold(1), again), None, "no connection");
    }

    #[tokio::test]
    async fn unread_commands_do_not_accumulate() {
        let (mut link, mut said, _tasks) = link();
        let start = Instant::now();
        for attempt in 1..1000 {
            link.send(&hold(attempt), start);
        }
        assert_eq!(std::iter::from_fn(|| said.try_recv().ok()).count(), 16);
        link.send(&hold(1), start + REPEAT);
        assert_eq!(link.sent.commands.len(), 1);
    }

    #[tokio::test]
    async fn while_containers_are_not_seen_only_the_connection_from_before_counts() {
        let (link, _said, _tasks) = link();
        let random = fastrand::Rng::with_seed(1);
        let metrics = Metrics::default();
        let mut links =
            SupervisorLinks::new(Path::new("/"), None, Duration::ZERO, random, &metrics);
        let slot = link.slot.clone();
        links.links.insert("p1".to_owned(), link);
        let container = ObservedContainer {
            id: "c1".to_owned(),
            restarts: 0,
            created_at: chrono::DateTime::UNIX_EPOCH,
            exit: None,
        };
        let mut pods = [NodePod {
            uid: "p1".to_owned(),
            supervised: true,
            containers: vec![container],
            ..NodePod::default()
        }];
        links.observe(&mut pods);
        links.observe_again(&mut pods);
        assert!(pods[0].supervisor.is_some());
        if let Some(up) = slot.get().as_mut() {
            up.number = 2;
        }
        links.observe_again(&mut pods);
        assert_eq!(pods[0].supervisor, None, "it may be the next container's");
        links.observe(&mut pods);
        links.observe_again(&mut pods);
        assert!(pods[0].supervisor.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_wakes_at_once_and_more_of_them_are_gathered() {
        let debounce = Duration::from_millis(20);
        let random = fastrand::Rng::with_seed(1);
        let mut links =
            SupervisorLinks::new(Path::new("/"), None, debounce, random, &Metrics::default());
        let start = Instant::now();
        links.changed.notify_one();
        links.changed().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..3 {
            links.changed.notify_one();
        }
        links.changed().await;
        assert_eq!(start.elapsed(), debounce);
        let more = tokio::time::timeout(debounce * 10, links.changed()).await;
        assert!(more.is_err(), "all of them were one");
    }
}
