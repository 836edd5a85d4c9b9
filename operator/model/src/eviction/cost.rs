//! Cost of evicting running work.

use std::iter::Sum;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::names::ACCELERATORS;

use crate::pods::pod::Pod;
use crate::pods::resources::is_extended;
use crate::pods::resources::{CPU, Resources};

/// Compute slices of a GPU with MIG.
const SLICES: i128 = 7;

/// Cost of an eviction, in accelerator-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimCost {
    /// Work since the last checkpoint. 0 if a checkpoint on request is expected.
    pub lost_work: u64,
    /// Time of a checkpoint on request.
    pub save: u64,
    /// Assumed cost of the restart.
    pub restart: u64,
}

impl VictimCost {
    pub fn total(self) -> u64 {
        self.lost_work
            .saturating_add(self.save)
            .saturating_add(self.restart)
    }
}

impl Sum for VictimCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| Self {
            lost_work: sum.lost_work.saturating_add(cost.lost_work),
            save: sum.save.saturating_add(cost.save),
            restart: sum.restart.saturating_add(cost.restart),
        })
    }
}

/// What limits the work that a gang would lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedWork {
    pub checkpoint: Option<DateTime<Utc>>,
    /// End of its last incident.
    pub resumed: Option<DateTime<Utc>>,
    /// Expected time of a checkpoint on request. `None`: none is requested, or the time is unknown.
    pub save: Option<TimeDelta>,
}

/// Weights of lost work. Costs are whole accelerator-seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Resources that count as accelerators.
    pub accelerators: Vec<String>,
    /// Weight of one CPU core of a pod without accelerators, in thousandths of an accelerator.
    pub cpu_weight_milli: i64,
    /// Cost of a restart in addition to lost work, in seconds.
    pub restart_overhead_seconds: i64,
    /// Assumed checkpoint interval, in seconds. Work without a report for longer costs no more, so
    /// neither missing nor old reports protect it.
    pub assumed_checkpoint_seconds: i64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            accelerators: ACCELERATORS.map(str::to_owned).into(),
            cpu_weight_milli: 10,
            restart_overhead_seconds: 120,
            assumed_checkpoint_seconds: 30 * 60,
        }
    }
}

/// Weight of a MIG slice, for example `nvidia.com/mig-3g.20gb`: three of seven parts of a GPU.
fn slice_milli(name: &str) -> Option<i128> {
    let slice = name.strip_prefix("nvidia.com/mig-")?;
    let parts: i128 = slice.split_once('g')?.0.parse().ok()?;
    (1..=SLICES).contains(&parts).then(|| parts * 1000 / SLICES)
}

impl CostModel {
    pub fn accelerators(&self, resources: &Resources) -> i64 {
        self.accelerators
            .iter()
            .map(|name| resources.get(name))
            .sum()
    }

    /// Cost of evicting a pod with these resources. `since`: when its work was last safe (`None`: it
    /// has not run); if in the future, now.
    pub fn cost(
        &self,
        resources: &Resources,
        since: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> VictimCost {
        let Some(since) = since else {
            return VictimCost::default();
        };
        let weight_milli = self.weight_milli(resources);
        VictimCost {
            lost_work: amount(weight_milli, (now - since).num_seconds()),
            save: 0,
            restart: amount(weight_milli, self.restart_overhead_seconds),
        }
    }

    /// Weight of a pod in thousandths of an accelerator: its accelerators and slices of such, else
    /// its CPU. A pod with another extended resource weighs at least one accelerator.
    fn weight_milli(&self, resources: &Resources) -> i128 {
        let slices = resources
            .iter()
            .filter_map(|(name, n)| Some(i128::from(n) * slice_milli(name)?));
        let accelerators = i128::from(self.accelerators(resources)) * 1000;
        let weight = accelerators + slices.sum::<i128>();
        if weight > 0 {
            return weight;
        }
        let cpu = i128::from(resources.get(CPU)) * i128::from(self.cpu_weight_milli) / 1000;
        let other = resources.iter().any(|(name, _)| is_extended(name));
        if other { cpu.max(1000) } else { cpu }
    }

    /// Cost of evicting one pod of a gang. An expected checkpoint on request replaces lost work that
    /// is worth more.
    pub fn cost_of_member(&self, pod: &Pod, work: SavedWork, now: DateTime<Utc>) -> VictimCost {
        let since = self.member_safe_until(pod, work, now);
        let full = self.cost(&pod.requests, since, now);
        match (work.save, since) {
            (Some(save), Some(since)) if save < now - since => VictimCost {
                lost_work: 0,
                save: amount(self.weight_milli(&pod.requests), save.num_seconds() + 1),
                ..full
            },
            _ => full,
        }
    }

    /// Time up to which the work of a gang's pod is safe: the latest of the gang's last checkpoint,
    /// the end of its last incident and the pod's start. `None`: it has not run.
    pub fn member_safe_until(
        &self,
        pod: &Pod,
        work: SavedWork,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let safe = pod
            .bound
            .as_ref()
            .and(self.safe_until(pod, work.checkpoint, now))?;
        let resumed = work.resumed.filter(|r| *r <= now);
        Some(resumed.map_or(safe, |resumed| resumed.max(safe)))
    }

    /// Cost of evicting a pod outside gangs.
    pub fn cost_of_pod(&self, pod: &Pod, now: DateTime<Utc>) -> VictimCost {
        let safe = self.safe_until(pod, pod.last_checkpoint, now);
        self.cost(&pod.requests, safe, now)
    }

    /// Time up to which a pod's work is safe: its last checkpoint, or its start if later. Assumes a
    /// checkpoint if the last one is missing, old or in the future. `None`: it has not run.
    fn safe_until(
        &self,
        pod: &Pod,
        checkpoint: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let assumed = now - TimeDelta::seconds(self.assumed_checkpoint_seconds);
        let reported = checkpoint.filter(|c| *c <= now);
        let safe = reported.map_or(assumed, |c| c.max(assumed));
        let started = pod.started.filter(|_| !pod.pending);
        started.map(|start| safe.max(start))
    }
}

/// Accelerator-seconds of a pod with this weight.
fn amount(weight_milli: i128, seconds: i64) -> u64 {
    let milli = weight_milli * i128::from(seconds.max(0));
    u64::try_from(milli / 1000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use lockstep_api::ids::NodeName;

    use super::*;
    use crate::test_support::mk_resources;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn lost_work_and_restart_are_accelerators_times_seconds() {
        let model = CostModel::default();
        let gpus = mk_resources(&[("nvidia.com/gpu", "8"), ("cpu", "64")]);
        let cost = model.cost(&gpus, Some(at(0)), at(600));
        assert_eq!((cost.lost_work, cost.restart), (8 * 600, 8 * 120));
        let cpu = mk_resources(&[("cpu", "64")]);
        let cost = model.cost(&cpu, Some(at(0)), at(600));
        assert_eq!((cost.lost_work, cost.restart), (64 * 6, 64 * 120 / 100));
        assert_eq!(model.cost(&gpus, None, at(600)).total(), 0);
    }

    #[test]
    fn a_pod_whose_containers_have_not_run_has_lost_nothing() {
        let model = CostModel::default();
        let pod = Pod {
            pending: true,
            bound: NodeName::read(Some("n1")),
            ..mk_pod("1", 0)
        };
        let none = VictimCost::default();
        assert_eq!(model.cost_of_pod(&pod, at(600)), none);
        assert_eq!(
            model.cost_of_member(&pod, SavedWork::default(), at(600)),
            none
        );
    }

    #[test]
    fn mig_slices_count_as_parts_of_an_accelerator() {
        let loss = |requests: &[(&str, &str)]| {
            let resources = mk_resources(requests);
            CostModel::default()
                .cost(&resources, Some(at(0)), at(580))
                .total()
        };
        let slices = [("nvidia.com/mig-3g.20gb", "14"), ("cpu", "100m")];
        assert_eq!(loss(&slices), 14 * 428 * 700 / 1000);
        assert_eq!(loss(&[("nvidia.com/mig-7g.40gb", "1")]), 700);
    }

    #[test]
    fn a_pod_with_an_unknown_extended_resource_weighs_at_least_one_accelerator() {
        let loss = |requests: &[(&str, &str)]| {
            let resources = mk_resources(requests);
            CostModel::default()
                .cost(&resources, Some(at(0)), at(580))
                .total()
        };
        assert_eq!(loss(&[("example.com/fpga", "4"), ("cpu", "8")]), 700);
        assert_eq!(loss(&[("example.com/fpga", "1"), ("cpu", "200")]), 1_400);
        assert_eq!(loss(&[("nvidia.com/gpu", "2"), ("rdma/hca", "1")]), 1_400);
        let storage = [("ephemeral-storage", "1Gi"), ("cpu", "100")];
        assert_eq!(loss(&storage), 700);
    }

    fn mk_pod(gpus: &str, started: i64) -> Pod {
        Pod {
            requests: mk_resources(&[("nvidia.com/gpu", gpus)]).into(),
            started: Some(at(started)),
            ..Pod::bare("ml", "p", "u".parse().unwrap())
        }
    }

    #[test]
    fn work_without_checkpoint_reports_is_not_better_protected_than_work_with_them() {
        let model = CostModel::default();
        let day = 24 * 3600;
        let silent = mk_pod("1", 0);
        let cost = |pod: &Pod, now| model.cost_of_pod(pod, now).total();
        let of_silent = cost(&silent, at(day));
        assert_eq!(of_silent, 30 * 60 + 120);
        for minutes in [10, 30] {
            let reports = Pod {
                last_checkpoint: Some(at(day - minutes * 60)),
                ..silent.clone()
            };
            assert!(cost(&reports, at(day)) <= of_silent);
        }
        for hours in [1, 12, 24] {
            let old = Pod {
                last_checkpoint: Some(at(day - hours * 3600)),
                ..silent.clone()
            };
            assert_eq!(cost(&old, at(day)), of_silent, "{hours} h");
        }
        let young = cost(&silent, at(600));
        assert_eq!(young, 600 + 120, "nothing is lost from before its start");
    }

    #[test]
    fn an_expected_checkpoint_replaces_work_that_is_worth_more() {
        let model = CostModel::default();
        let pod = Pod {
            bound: NodeName::read(Some("n1")),
            ..mk_pod("8", 0)
        };
        let cost = |save: Option<i64>, now| {
            let work = SavedWork {
                save: save.map(TimeDelta::milliseconds),
                ..SavedWork::default()
            };
            let cost = model.cost_of_member(&pod, work, at(now));
            assert_eq!(cost.restart, 8 * 120);
            assert_eq!(cost.total(), cost.lost_work + cost.save + cost.restart);
            (cost.lost_work, cost.save)
        };
        assert_eq!(cost(None, 600), (8 * 600, 0));
        assert_eq!(cost(Some(20_300), 600), (0, 8 * 21));
        assert_eq!(cost(Some(20_300), 20), (8 * 20, 0));
    }

    #[test]
    fn checkpoints_in_the_future_and_before_the_start_do_not_count() {
        let model = CostModel::default();
        let pod = mk_pod("1", 0);
        let safe = |checkpoint, now| model.safe_until(&pod, Some(at(checkpoint)), at(now));
        assert_eq!(safe(900, 600), Some(at(0)));
        assert_eq!(safe(90_000, 6000), Some(at(6000 - 1800)));
        assert_eq!(safe(5000, 6000), Some(at(5000)));
        assert_eq!(safe(500, 6000), Some(at(6000 - 1800)));
        assert_eq!(safe(-5, 600), Some(at(0)));
    }
}
