//! Ranks and addresses by which members find each other.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::member::{Member, parse_indexes};
use crate::names::hostname;
use crate::workload::{
    BarrierArrivals, Group, Network, TrainingWorkloadSpec, TrainingWorkloadStatus, WorldScope,
};

/// Most members that are named as late at barriers.
pub const LATE: usize = 8;

/// Position of a member in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Number of members of the world.
    pub world: i32,
    /// Rank of the member in the world (node rank in frameworks).
    pub rank: i32,
    /// Number of the member in its group, as a Job's completion index: replica x size + index.
    pub completion_index: i32,
}

/// The members that run together. An elastic gang may be placed with some of its members only. The
/// ledger (`groups[].worldIndexes`) lists them, and their ranks have no gaps.
#[derive(Clone, Debug)]
pub struct Membership<'s> {
    network: &'s Network,
    /// In the order of the spec.
    groups: Vec<Part<'s>>,
}

/// The members of one group.
#[derive(Clone, Debug)]
struct Part<'s> {
    name: &'s str,
    size: i32,
    /// Replicas x size.
    all: i32,
    /// Completion indexes of the running members, ascending; `None`: all.
    some: Option<Vec<i32>>,
}

impl<'s> Membership<'s> {
    /// The members that run according to the ledger.
    pub fn of(spec: &'s TrainingWorkloadSpec, ledger: &TrainingWorkloadStatus) -> Self {
        Self::with_replicas(spec, &spec.replica_counts(), ledger)
    }

    /// The same, with replica counts that differ from the current spec, in the order of its groups.
    fn with_replicas(
        spec: &'s TrainingWorkloadSpec,
        replicas: &[i32],
        ledger: &TrainingWorkloadStatus,
    ) -> Self {
        Self::new(spec, replicas, &running_indexes(ledger))
    }

    /// Creates a membership. `running` has completion indexes by group; a group that is not in it
    /// runs all its members. `replicas` are in the order of the spec's groups.
    pub fn new(spec: &'s TrainingWorkloadSpec, replicas: &[i32], running: &RunningIndexes) -> Self {
        let groups = spec.groups.iter().zip(replicas);
        Self {
            network: &spec.network,
            groups: groups
                .map(|(group, replicas)| Part::new(group, *replicas, running.get(&group.name)))
                .collect(),
        }
    }

    /// All members of the spec.
    pub fn whole(spec: &'s TrainingWorkloadSpec) -> Self {
        Self::of(spec, &TrainingWorkloadStatus::default())
    }

    /// True if a member runs.
    pub fn contains(&self, member: &Member) -> bool {
        self.part(member)
            .is_some_and(|(part, index)| part.before(index) < part.before(index + 1))
    }

    /// Number of running members of a group.
    pub fn size_of(&self, group: &str) -> i32 {
        self.groups
            .iter()
            .find(|p| p.name == group)
            .map_or(0, Part::len)
    }

    /// Counts members that have to arrive at a barrier, each with whether it has arrived. Without an
    /// arrival, no member waits, so none is late.
    pub fn arrivals<'m>(
        &self,
        members: impl IntoIterator<Item = (&'m Member, bool)>,
        time: DateTime<Utc>,
    ) -> BarrierArrivals {
        let (mut missing, mut arrived) = (Vec::new(), 0);
        for (member, has_arrived) in members {
            if has_arrived {
                arrived += 1;
            } else {
                missing.push(member);
            }
        }
        missing.sort_by_cached_key(|m| self.place(m).map(|place| place.rank));
        let late = missing.iter().take(if arrived > 0 { LATE } else { 0 });
        BarrierArrivals {
            arrived,
            expected: arrived + missing.len() as i32,
            late: late.map(|m| m.to_range()).collect(),
            arrivals_time: time,
        }
    }

    /// True if all running members of the group have succeeded. False for a group without
    /// running members.
    pub fn complete(&self, group: &str, completed: &BTreeSet<Member>) -> bool {
        let done = completed
            .iter()
            .filter(|m| m.group == group && self.contains(m))
            .count();
        done > 0 && done == self.size_of(group) as usize
    }

    /// Position of a member; `None` if it does not run. Worlds over several groups number members
    /// in the order of the spec.
    pub fn place(&self, member: &Member) -> Option<Rank> {
        let (part, index) = self.part(member).filter(|_| self.contains(member))?;
        let rank = part.before(index);
        let (world, rank) = match self.network.world {
            WorldScope::Replica => {
                let (from, to) = (member.replica * part.size, (member.replica + 1) * part.size);
                (
                    part.before(to) - part.before(from),
                    rank - part.before(from),
                )
            }
            WorldScope::Group => (part.len(), rank),
            WorldScope::Workload => {
                let ahead: i32 = self
                    .groups
                    .iter()
                    .take_while(|p| p.name != part.name)
                    .map(Part::len)
                    .sum();
                (self.groups.iter().map(Part::len).sum(), ahead + rank)
            }
        };
        Some(Rank {
            world,
            rank,
            completion_index: index,
        })
    }

    /// Coordinator of a member: `network.coordinator` if it runs, else the first member of its
    /// world.
    pub fn coordinator(&self, member: &Member) -> Member {
        let chosen = self
            .network
            .coordinator
            .as_ref()
            .map(|c| Member::new(c.group.as_str(), c.replica, c.index));
        if let Some(chosen) = chosen.filter(|c| self.contains(c)) {
            return chosen;
        }
        let own = || self.groups.iter().find(|p| p.name == member.group);
        let first = match self.network.world {
            WorldScope::Replica => own().and_then(|p| p.first(member.replica * p.size)),
            WorldScope::Group => own().and_then(|p| p.first(0)),
            WorldScope::Workload => self.groups.iter().find_map(|p| p.first(0)),
        };
        first.unwrap_or_else(|| member.clone())
    }

    /// Number of members that share the coordinator of this member; `None` if the member does not
    /// run.
    pub fn rendezvous_size(&self, member: &Member) -> Option<i32> {
        let world = self.place(member)?.world;
        let chosen = self
            .network
            .coordinator
            .as_ref()
            .is_some_and(|c| self.contains(&Member::new(c.group.as_str(), c.replica, c.index)));
        // The coordinator of the spec serves the members of every world.
        Some(if chosen {
            self.groups.iter().map(Part::len).sum()
        } else {
            world
        })
    }

    fn part(&self, member: &Member) -> Option<(&Part<'s>, i32)> {
        let part = self
            .groups
            .iter()
            .find(|p| p.name == member.group)
            .filter(|p| member.index < p.size)?;
        let index = member.replica * part.size + member.index;
        (index < part.all).then_some((part, index))
    }
}

impl<'s> Part<'s> {
    fn new(group: &'s Group, replicas: i32, running: Option<&BTreeSet<i32>>) -> Self {
        let all = replicas * group.size;
        let some = running.map(|r| r.range(..all.max(0)).copied().collect::<Vec<i32>>());
        Self {
            name: &group.name,
            size: group.size,
            all,
            some: some.filter(|s| s.len() < all.max(0) as usize),
        }
    }

    /// Number of running members with a lower index.
    fn before(&self, index: i32) -> i32 {
        self.some
            .as_ref()
            .map_or(index, |some| some.partition_point(|i| *i < index) as i32)
    }

    fn len(&self) -> i32 {
        self.some
            .as_ref()
            .map_or(self.all, |some| some.len() as i32)
    }

    /// The first running member at or after an index.
    fn first(&self, from: i32) -> Option<Member> {
        let index = match &self.some {
            None => Some(from).filter(|i| *i < self.all),
            Some(some) => some.get(self.before(from) as usize).copied(),
        }?;
        Some(Member::new(
            self.name,
            index / self.size.max(1),
            index % self.size.max(1),
        ))
    }
}

/// Completion indexes of the running members by group, for groups that run only in part.
pub type RunningIndexes = BTreeMap<String, BTreeSet<i32>>;

/// Parses `groups[].worldIndexes`.
pub fn running_indexes(status: &TrainingWorkloadStatus) -> RunningIndexes {
    let mut out = RunningIndexes::new();
    for group in &status.groups {
        // The operator writes this field. If it has been corrupted, all members count.
        if let Some(indexes) = group.world_indexes.as_deref().and_then(parse_indexes) {
            out.insert(group.name.clone(), indexes.into_iter().collect());
        }
    }
    out
}

/// Parses `groups[].completedIndexes`. Keeps indexes beyond the current replicas: members stay
/// completed if the group grows again.
pub fn completed_members(
    status: &TrainingWorkloadStatus,
    spec: &TrainingWorkloadSpec,
) -> BTreeSet<Member> {
    let mut out = BTreeSet::new();
    for group in &spec.groups {
        let entry = status.groups.iter().find(|s| s.name == group.name);
        let indexes = entry.and_then(|s| parse_indexes(&s.completed_indexes));
        let size = group.size.max(1);
        for index in indexes.unwrap_or_default() {
            out.insert(Member::new(group.name.as_str(), index / size, index % size));
        }
    }
    out
}

/// Number of a member in its group.
pub fn completion_index(group: &Group, member: &Member) -> i32 {
    member.replica * group.size + member.index
}

/// DNS name of a member in the namespace: its stable hostname below the headless Service.
pub fn address(workload: &str, subdomain: &str, member: &Member) -> String {
    format!("{}.{subdomain}", hostname(workload, member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::GroupStatus;
    use serde_json::json;

    fn spec(object: serde_json::Value) -> TrainingWorkloadSpec {
        serde_json::from_value(object).unwrap()
    }

    fn with_world(world: &str) -> TrainingWorkloadSpec {
        spec(json!({"network": {"world": world}, "groups": [
            {"name": "zoo", "replicas": 2, "size": 3, "template": {"spec": {"containers": []}}},
            {"name": "abc", "replicas": 1, "size": 2, "template": {"spec": {"containers": []}}}]}))
    }

    #[test]
    fn world_and_rank_run_over_the_chosen_scope() {
        let m = Member::new("zoo", 1, 2);
        let place_in = |world| {
            Membership::whole(&with_world(world))
                .place(&m)
                .map(|p| (p.world, p.rank, p.completion_index))
        };
        assert_eq!(place_in("Replica"), Some((3, 2, 5)));
        assert_eq!(place_in("Group"), Some((6, 5, 5)));
        assert_eq!(place_in("Workload"), Some((8, 5, 5)));
    }

    #[test]
    fn a_world_over_all_groups_follows_the_order_of_the_spec() {
        let s = with_world("Workload");
        let world = Membership::whole(&s);
        assert_eq!(
            world.place(&Member::new("abc", 0, 0)).map(|p| p.rank),
            Some(6)
        );
        assert_eq!(
            world.coordinator(&Member::new("abc", 0, 1)),
            Member::new("zoo", 0, 0)
        );
    }

    #[test]
    fn a_member_beyond_the_replicas_has_no_place() {
        let s = with_world("Group");
        assert_eq!(Membership::whole(&s).place(&Member::new("zoo", 2, 0)), None);
        assert_eq!(
            Membership::whole(&s).place(&Member::new("absent", 0, 0)),
            None
        );
    }

    /// The ledger of a gang that is placed with some members of the group `zoo`.
    fn partial(indexes: &str) -> TrainingWorkloadStatus {
        let zoo = GroupStatus {
            name: "zoo".into(),
            world_indexes: Some(indexes.into()),
            ..GroupStatus::default()
        };
        TrainingWorkloadStatus {
            groups: vec![zoo],
            ..TrainingWorkloadStatus::default()
        }
    }

    #[test]
    fn ranks_run_without_gaps_over_the_members_that_are_placed() {
        let m = Member::new("zoo", 1, 2);
        let place_in = |world| {
            let s = with_world(world);
            Membership::of(&s, &partial("1,4-5"))
                .place(&m)
                .map(|p| (p.world, p.rank, p.completion_index))
        };
        assert_eq!(place_in("Replica"), Some((2, 1, 5)));
        assert_eq!(place_in("Group"), Some((3, 2, 5)));
        assert_eq!(place_in("Workload"), Some((5, 2, 5)));
        let s = with_world("Workload");
        let world = Membership::of(&s, &partial("1,4-5"));
        assert_eq!(
            world.place(&Member::new("abc", 0, 1)).map(|p| p.rank),
            Some(4)
        );
        assert_eq!(
            world.place(&Member::new("zoo", 0, 0)),
            None,
            "it is not placed"
        );
    }

    #[test]
    fn members_meet_at_the_first_that_is_placed() {
        let at = |world, indexes: &str, m| {
            let s = with_world(world);
            Membership::of(&s, &partial(indexes)).coordinator(&m)
        };
        assert_eq!(
            at("Group", "1,4-5", Member::new("zoo", 1, 2)),
            Member::new("zoo", 0, 1)
        );
        assert_eq!(
            at("Replica", "1,4-5", Member::new("zoo", 1, 2)),
            Member::new("zoo", 1, 1)
        );
        assert_eq!(
            at("Workload", "", Member::new("abc", 0, 1)),
            Member::new("abc", 0, 0)
        );
    }

    #[test]
    fn the_chosen_coordinator_counts_while_it_is_placed() {
        let mut s = with_world("Group");
        s.network.coordinator =
            serde_json::from_value(json!({"group": "zoo", "replica": 1, "index": 0})).unwrap();
        let m = Member::new("zoo", 1, 2);
        assert_eq!(
            Membership::of(&s, &partial("1,3,5")).coordinator(&m),
            Member::new("zoo", 1, 0)
        );
        assert_eq!(
            Membership::of(&s, &partial("1,5")).coordinator(&m),
            Member::new("zoo", 0, 1)
        );
    }

    #[test]
    fn a_group_is_complete_when_all_that_run_have_succeeded() {
        let s = with_world("Group");
        let world = Membership::of(&s, &partial("0-1"));
        let done = |n| (0..n).map(|i| Member::new("zoo", 0, i)).collect();
        assert!(!world.complete("zoo", &done(1)) && world.complete("zoo", &done(2)));
        assert!(
            !Membership::of(&s, &partial("")).complete("zoo", &done(2)),
            "none of it runs"
        );
    }
}
