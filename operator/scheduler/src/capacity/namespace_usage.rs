//! Usage per namespace, with the placements of this cycle: the share of the cluster, which orders
//! the queue, and free quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Assignments;
use lockstep_api::member::Member;
use lockstep_model::quota::{QuotaAmounts, QuotaExcess};
use lockstep_model::{Quota, QuotaCharge, Shares, Snapshot, Weights};

use crate::gang::member_pods::MemberPods;
use crate::gang::state::GangState;
use crate::input::SchedulingInput;
use crate::input::hold::GangPhase;

#[derive(Debug)]
pub(crate) struct NamespaceUsage<'i> {
    shares: Shares<'i>,
    quotas: &'i [Arc<Quota>],
    /// Quota for placed members whose pods do not exist yet, by position of the quota.
    promised: BTreeMap<usize, QuotaAmounts>,
}

impl<'i> NamespaceUsage<'i> {
    pub fn new(
        cluster: &Snapshot,
        weights: &'i Weights,
        quotas: &'i [Arc<Quota>],
        gangs: &[GangState],
    ) -> Self {
        let mut usage = Self {
            shares: Shares::new(cluster, weights),
            quotas,
            promised: BTreeMap::new(),
        };
        for gang in gangs {
            if gang.phase() != &GangPhase::Finished && !gang.input.released() {
                usage.admit(gang, None);
            }
        }
        usage
    }

    /// Counts the nodes of a gang. `before`: nodes already counted.
    pub fn admit(&mut self, gang: &GangState, before: Option<&Assignments>) {
        let namespace = &gang.input.key.namespace;
        let is_new = |m: &Member| before.is_none_or(|b| !b.contains_key(m));
        let mut members: BTreeMap<&str, usize> = BTreeMap::new();
        let mut without_pod: BTreeMap<&str, usize> = BTreeMap::new();
        let lacks_pod = |m: &Member| gang.fully_bound().is_none() && !has_pod(gang, m);
        for (member, _) in gang.unfinished_assigned().filter(|(m, _)| is_new(m)) {
            *members.entry(&member.group).or_default() += 1;
            *without_pod.entry(&member.group).or_default() += usize::from(lacks_pod(member));
        }
        for (group, pods) in members {
            if let Some(requests) = gang.input.requests(group) {
                self.shares.add(namespace, requests, pods);
            }
        }
        for (group, pods) in without_pod {
            let Some(charge) = charge(gang, group) else {
                continue;
            };
            for (at, _) in of_namespace(self.quotas, namespace).filter(|(_, q)| q.counts(charge)) {
                let promised = self.promised.entry(at).or_default();
                for (name, amount) in &charge.amounts {
                    *promised.entry(name.clone()).or_default() += times(*amount, pods);
                }
            }
        }
    }

    pub fn share(&self, namespace: &str) -> u64 {
        self.shares.of(namespace)
    }

    pub fn has_quota(&self, namespace: &str) -> bool {
        of_namespace(self.quotas, namespace).next().is_some()
    }

    /// The first quota that permits no `count` of these members.
    pub fn excess(
        &self,
        gang: &GangState,
        members: &BTreeSet<&Member>,
        count: usize,
    ) -> Option<QuotaExcess> {
        let mut by_group: BTreeMap<&str, usize> = BTreeMap::new();
        for member in members {
            *by_group.entry(&member.group).or_default() += 1;
        }
        let nothing = QuotaAmounts::new();
        let mut quotas = of_namespace(self.quotas, &gang.input.key.namespace);
        quotas.find_map(|(at, quota)| {
            let counted = by_group.iter().map(|(group, pods)| {
                let charge = charge(gang, group).filter(|c| quota.counts(c));
                (charge, *pods)
            });
            let needed = least(quota, &counted.collect::<Vec<_>>(), count);
            quota.excess(&needed, self.promised.get(&at).unwrap_or(&nothing))
        })
    }
}

/// Shares of all namespaces with gangs ([`Shares::of`]) before the next cycle.
pub fn namespace_shares(input: &SchedulingInput, now: DateTime<Utc>) -> BTreeMap<String, u64> {
    let gangs = input.gangs.iter();
    let mut pods = MemberPods::default();
    let gangs: Vec<GangState> = gangs
        .map(|gang| GangState::new(Arc::clone(gang), pods.of(gang, &input.cluster), now))
        .collect();
    let usage = NamespaceUsage::new(&input.cluster, &input.weights, &input.quotas, &gangs);
    let namespaces = input.gangs.iter().map(|gang| &gang.key.namespace);
    namespaces
        .map(|namespace| (namespace.to_string(), usage.share(namespace)))
        .collect()
}

/// Sum over the `count` pods with the least usage, for each resource separately.
fn least(quota: &Quota, pods: &[(Option<&QuotaCharge>, usize)], count: usize) -> QuotaAmounts {
    quota
        .hard
        .keys()
        .map(|name| (name.clone(), least_of(name, pods, count)))
        .collect()
}

fn least_of(name: &str, pods: &[(Option<&QuotaCharge>, usize)], count: usize) -> i64 {
    let amount = |charge: &&QuotaCharge| charge.amounts.get(name).copied().unwrap_or(0);
    let mut each: Vec<(i64, usize)> = pods
        .iter()
        .map(|(charge, pods)| (charge.as_ref().map_or(0, amount), *pods))
        .collect();
    each.sort_unstable();
    let (mut sum, mut left) = (0i64, count);
    for (amount, pods) in each {
        sum = sum.saturating_add(times(amount, pods.min(left)));
        left -= pods.min(left);
    }
    sum
}

fn of_namespace<'q>(
    quotas: &'q [Arc<Quota>],
    namespace: &'q str,
) -> impl Iterator<Item = (usize, &'q Arc<Quota>)> {
    let all = quotas.iter().enumerate();
    all.filter(move |(_, quota)| quota.namespace == namespace)
}

fn charge<'g>(gang: &'g GangState, group: &str) -> Option<&'g QuotaCharge> {
    let mut templates = gang.input.workload.templates.iter();
    templates.find(|t| t.group == group)?.charge.as_deref()
}

/// True if the quota already counts a pod of the member, even a replaced pod.
pub(crate) fn has_pod(gang: &GangState, member: &Member) -> bool {
    let mut pods = gang.pods_of(member).iter();
    pods.any(|pod| !pod.ended())
}

fn times(amount: i64, pods: usize) -> i64 {
    amount.saturating_mul(i64::try_from(pods).unwrap_or(i64::MAX))
}
