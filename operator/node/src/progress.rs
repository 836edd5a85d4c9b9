//! Progress of the members on a node, reported at intervals.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::node_agent::MemberProgress;

use super::supervisor::ChildProgress;
use super::view::{NodePod, NodeView, order_for};

/// Least time between reports about one member.
const INTERVAL: TimeDelta = TimeDelta::seconds(60);
/// Interval per member of the restart domain. Together, the agents of thousands of members write
/// ten times per second.
const INTERVAL_PER_MEMBER: TimeDelta = TimeDelta::milliseconds(100);

pub(super) struct ProgressReport {
    pub list: Vec<MemberProgress>,
    /// Removed pods alone are no reason to publish.
    pub news: bool,
    pub wake_after: Option<Duration>,
}

/// Shortest time between the steps of a rate, because their times have whole seconds.
const RATE_SECONDS: i64 = 30;

/// `written`: other changes are due now, so progress needs no write of its own.
pub(super) fn progress(view: &NodeView<'_>, written: bool, now: DateTime<Utc>) -> ProgressReport {
    let mut report = ProgressReport {
        list: Vec::new(),
        news: false,
        wake_after: None,
    };
    for pod in view.pods {
        let before = view
            .published
            .progress
            .iter()
            .find(|p| p.pod_uid == pod.uid);
        let latest = pod.supervisor.as_ref().and_then(|s| s.progress.as_ref());
        let new = latest.map(|latest| MemberProgress {
            steps_per_hour: before.and_then(|old| steps_per_hour(pod, old, latest)),
            ..member_progress(pod, latest, now)
        });
        let Some(new) = new.filter(|new| before.is_none_or(|old| differs(old, new))) else {
            report.list.extend(before.cloned());
            continue;
        };
        if written {
            report.list.push(new);
            continue;
        }
        let wait = before.and_then(|old| (old.time + interval(view, pod) - now).to_std().ok());
        // A clock set back must not suppress reports.
        let wait = wait.filter(|wait| !wait.is_zero() && before.is_some_and(|old| old.time <= now));
        if let Some(wait) = wait {
            report.list.extend(before.cloned());
            report.wake_after = Some(report.wake_after.map_or(wait, |w| w.min(wait)));
        } else {
            report.list.push(new);
            report.news = true;
        }
    }
    report.list.sort_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
    report
}

fn interval(view: &NodeView<'_>, pod: &NodePod) -> TimeDelta {
    let members = order_for(view.orders, pod).map_or(0, |order| order.world.max(0));
    INTERVAL.max(INTERVAL_PER_MEMBER * members)
}

/// Limits times from the container: the API server would refuse the whole status for an invalid
/// time.
fn member_progress(pod: &NodePod, progress: &ChildProgress, now: DateTime<Utc>) -> MemberProgress {
    let (step, step_time) = progress.step;
    MemberProgress {
        pod_uid: pod.uid.clone(),
        attempt: progress.attempt,
        step,
        step_time: step_time.min(now),
        checkpoint_step: progress.checkpoint.map(|(step, _)| step),
        checkpoint_time: progress.checkpoint.map(|(_, time)| time.min(now)),
        total: progress.total,
        steps_per_hour: None,
        metrics: progress.metrics.clone(),
        time: now,
    }
}

/// Rate since the published report. A process that has restarted, in a new attempt or a new
/// container, continues from its last checkpoint, so it has no rate before its second report.
fn steps_per_hour(pod: &NodePod, old: &MemberProgress, new: &ChildProgress) -> Option<i64> {
    let (step, step_time) = new.step;
    let restarted = pod
        .newest_running()
        .is_some_and(|c| c.created_at > old.step_time);
    if restarted || old.attempt != new.attempt || step < old.step {
        return None;
    }
    let seconds = (step_time - old.step_time).num_seconds();
    if seconds < RATE_SECONDS {
        return old.steps_per_hour;
    }
    let per_hour = i128::from(step - old.step) * 3600 / i128::from(seconds);
    per_hour.try_into().ok()
}

/// After a new link, repeated times may differ by a second.
fn differs(old: &MemberProgress, new: &MemberProgress) -> bool {
    (old.attempt, old.step, old.checkpoint_step) != (new.attempt, new.step, new.checkpoint_step)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_api::restart_order::DomainOrder;
    use lockstep_api::{NodeAgentStatus, RestartOrderSpec};

    use super::super::view::Records;
    use super::super::{NamespacedOrders, NodePlan, SupervisorState, decide};
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000 + second, 0).unwrap()
    }

    /// A node with one member of a domain of `world` members, and its agent's published progress.
    struct Node {
        orders: NamespacedOrders,
        pod: NodePod,
        records: Records,
        published: NodeAgentStatus,
        attempt: i64,
    }

    impl Node {
        fn new(world: i32) -> Self {
            let order = DomainOrder {
                key: "workload".to_owned(),
                attempt: 1,
                world,
                ..DomainOrder::default()
            };
            let orders = RestartOrderSpec {
                workload_uid: "w".to_owned(),
                domains: vec![order],
            };
            let pod = NodePod {
                uid: "p".to_owned(),
                workload_uid: "w".to_owned(),
                domain: "workload".to_owned(),
                supervised: true,
                ..NodePod::default()
            };
            Self {
                orders: BTreeMap::from([((String::new(), "w".to_owned()), orders)]),
                pod,
                records: Records::default(),
                published: NodeAgentStatus::default(),
                attempt: 1,
            }
        }

        fn decide(&self, second: i64) -> NodePlan {
            let view = NodeView {
                node: "n",
                orders: &self.orders,
                pods: std::slice::from_ref(&self.pod),
                listed: true,
                records: &self.records,
                published: &self.published,
            };
            decide(&view, at(second))
        }

        /// Published steps after a decision, and seconds until the next one.
        fn look(&mut self, step: i64, second: i64) -> (Vec<i64>, Option<u64>) {
            self.pod.supervisor = Some(SupervisorState {
                progress: Some(ChildProgress {
                    attempt: self.attempt,
                    step: (step, at(second)),
                    checkpoint: None,
                    total: None,
                    metrics: Vec::new(),
                }),
                ..SupervisorState::default()
            });
            let plan = self.decide(second);
            self.published = plan.status.unwrap_or(self.published.clone());
            let steps = self.published.progress.iter().map(|p| p.step).collect();
            (steps, plan.wake_after.map(|wait| wait.as_secs()))
        }
    }

    #[test]
    fn progress_is_reported_at_once_and_then_once_a_minute() {
        let mut node = Node::new(8);
        assert_eq!(node.look(1, 0), (vec![1], None));
        assert_eq!(node.look(1, 10), (vec![1], None), "nothing new");
        assert_eq!(node.look(2, 15), (vec![1], Some(45)));
        assert_eq!(node.look(9, 59), (vec![1], Some(1)));
        assert_eq!(node.look(9, 60), (vec![9], None));
        assert_eq!(node.look(10, 61), (vec![9], Some(59)));
    }

    #[test]
    fn the_rate_is_that_between_two_reports_of_one_process() {
        let mut node = Node::new(8);
        let mut rate = |step, second, attempt, created| {
            node.pod.containers = vec![super::super::ObservedContainer {
                id: format!("c{created}"),
                restarts: 0,
                created_at: at(created),
                exit: None,
            }];
            node.attempt = attempt;
            node.look(step, second);
            node.published.progress[0].steps_per_hour
        };
        assert_eq!(rate(1000, 0, 1, 0), None, "one report");
        assert_eq!(rate(1060, 60, 1, 0), Some(3600));
        assert_eq!(rate(1061, 180, 1, 0), Some(30));
        assert_eq!(rate(1010, 300, 2, 0), None, "from its checkpoint");
        assert_eq!(rate(1070, 360, 2, 0), Some(3600));
        assert_eq!(rate(1080, 500, 2, 480), None, "a new container");
        assert_eq!(rate(1085, 560, 2, 480), Some(300));
        assert_eq!(rate(1020, 620, 2, 480), None, "a restart by its launcher");
    }

    #[test]
    fn what_is_new_comes_with_other_news() {
        let mut node = Node::new(8);
        node.look(1, 0);
        let exit = super::super::Exit {
            code: 1,
            reason: "Error".to_owned(),
            at: at(2),
        };
        node.pod.containers = vec![super::super::ObservedContainer {
            id: "c".to_owned(),
            restarts: 0,
            created_at: at(0),
            exit: Some(exit),
        }];
        assert_eq!(node.look(2, 2), (vec![2], None));
        assert_eq!(node.published.reports.len(), 1);
    }

    #[test]
    fn progress_of_members_of_large_gangs_is_reported_less_often() {
        let mut node = Node::new(5000);
        assert_eq!(node.look(1, 0), (vec![1], None));
        assert_eq!(node.look(2, 60), (vec![1], Some(440)));
        assert_eq!(node.look(2, 500), (vec![2], None));
    }

    #[test]
    fn a_clock_set_back_does_not_suppress_reports() {
        let mut node = Node::new(8);
        assert_eq!(node.look(1, 3600), (vec![1], None));
        assert_eq!(node.look(2, 0), (vec![2], None));
    }

    #[test]
    fn times_that_a_container_makes_up_are_not_published() {
        let mut node = Node::new(8);
        let forged = DateTime::from_timestamp(253_402_300_800, 0).unwrap();
        node.pod.supervisor = Some(SupervisorState {
            progress: Some(ChildProgress {
                attempt: 1,
                step: (1, forged),
                checkpoint: Some((1, forged)),
                total: None,
                metrics: Vec::new(),
            }),
            ..SupervisorState::default()
        });
        let plan = node.decide(0);
        let reported = plan.status.unwrap().progress.remove(0);
        assert_eq!(
            (reported.step_time, reported.checkpoint_time),
            (at(0), Some(at(0)))
        );
    }

    #[test]
    fn reported_progress_stays_while_the_agent_has_no_link() {
        let mut node = Node::new(8);
        node.look(1, 0);
        node.pod.supervisor = None;
        assert_eq!(node.decide(100).status, None);
    }
}
