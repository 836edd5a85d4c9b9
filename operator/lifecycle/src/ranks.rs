//! Numbers and names by which members find each other.

use std::collections::BTreeSet;

use lockstep_api::member::{Member, parse_indexes};
use lockstep_api::names::hostname;
use lockstep_api::workload::{Group, Network, TrainingWorkloadSpec, TrainingWorkloadStatus, WorldScope};

/// A member's place in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of members of the world.
    pub world: i32,
    /// Number of the member in it (frameworks call it the node rank).
    pub rank: i32,
    /// Number of the member in its group, as a Job's completion index: replica x size + index.
    pub completion_index: i32,
}

/// The members that run together. An elastic gang may have room for some of its members only; who they are is in the
/// ledger (`groups[].worldIndexes`), and ranks run over them without gaps.
#[derive(Clone, Debug)]
pub struct World<'s> {
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
    /// Numbers of those that run, ascending; None: all.
    some: Option<Vec<i32>>,
}

impl<'s> World<'s> {
    /// The world that the ledger says.
    pub fn of(spec: &'s TrainingWorkloadSpec, ledger: &TrainingWorkloadStatus) -> Self {
        let replicas: Vec<i32> = spec.groups.iter().map(|g| g.replicas).collect();
        Self::with_replicas(spec, &replicas, ledger)
    }

    /// The same with other numbers of replicas than the spec has now, in the order of its groups.
    pub fn with_replicas(spec: &'s TrainingWorkloadSpec, replicas: &[i32], ledger: &TrainingWorkloadStatus) -> Self {
        let part = |(group, replicas): (&'s Group, &i32)| {
            let all = replicas * group.size;
            let entry = ledger.groups.iter().find(|g| g.name == group.name);
            // Written by us; if a hand has damaged it, all members belong together.
            let some = entry.and_then(|g| parse_indexes(g.world_indexes.as_ref()?)).map(|mut indexes| {
                indexes.retain(|i| *i < all);
                indexes.sort_unstable();
                indexes.dedup();
                indexes
            });
            Part { name: &group.name, size: group.size, all, some: some.filter(|s| s.len() < all.max(0) as usize) }
        };
        Self { network: &spec.network, groups: spec.groups.iter().zip(replicas).map(part).collect() }
    }

    /// All members of the spec.
    pub fn whole(spec: &'s TrainingWorkloadSpec) -> Self {
        Self::of(spec, &TrainingWorkloadStatus::default())
    }

    /// Whether a member runs.
    pub fn contains(&self, member: &Member) -> bool {
        self.part(member).is_some_and(|(part, index)| part.before(index) < part.before(index + 1))
    }

    /// How many members of a group run.
    pub fn size_of(&self, group: &str) -> i32 {
        self.groups.iter().find(|p| p.name == group).map_or(0, Part::len)
    }

    /// Whether the whole group has succeeded: those of its members that run. A group of which nobody runs has nothing that
    /// could.
    pub fn complete(&self, group: &str, completed: &BTreeSet<Member>) -> bool {
        let done = completed.iter().filter(|m| m.group == group && self.contains(m)).count();
        done > 0 && done == self.size_of(group) as usize
    }

    /// The member's place. Worlds over several groups number them in the order of the spec. None for a member that does not
    /// run.
    pub fn place(&self, member: &Member) -> Option<Place> {
        let (part, index) = self.part(member).filter(|_| self.contains(member))?;
        let rank = part.before(index);
        let (world, rank) = match self.network.world {
            WorldScope::Replica => {
                let (from, to) = (member.replica * part.size, (member.replica + 1) * part.size);
                (part.before(to) - part.before(from), rank - part.before(from))
            }
            WorldScope::Group => (part.len(), rank),
            WorldScope::Workload => {
                let ahead: i32 = self.groups.iter().take_while(|p| p.name != part.name).map(Part::len).sum();
                (self.groups.iter().map(Part::len).sum(), ahead + rank)
            }
        };
        Some(Place { world, rank, completion_index: index })
    }

    /// The member that the given one meets at: `network.coordinator` if it runs, else the first of its world.
    pub fn coordinator(&self, member: &Member) -> Member {
        let chosen = self.network.coordinator.as_ref().map(|c| Member::new(c.group.as_str(), c.replica, c.index));
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

    fn part(&self, member: &Member) -> Option<(&Part<'s>, i32)> {
        let part = self.groups.iter().find(|p| p.name == member.group).filter(|p| member.index < p.size)?;
        let index = member.replica * part.size + member.index;
        (index < part.all).then_some((part, index))
    }
}

impl Part<'_> {
    /// How many of those that run have a lower number.
    fn before(&self, index: i32) -> i32 {
        self.some.as_ref().map_or(index, |some| some.partition_point(|i| *i < index) as i32)
    }

    fn len(&self) -> i32 {
        self.some.as_ref().map_or(self.all, |some| some.len() as i32)
    }

    /// The first that runs from a number on.
    fn first(&self, from: i32) -> Option<Member> {
        let index = match &self.some {
            None => Some(from).filter(|i| *i < self.all),
            Some(some) => some.get(self.before(from) as usize).copied(),
        }?;
        Some(Member::new(self.name, index / self.size.max(1), index % self.size.max(1)))
    }
}

/// Number of a member in its group.
pub fn completion_index(group: &Group, member: &Member) -> i32 {
    member.replica * group.size + member.index
}

/// Name of a member that every pod of the namespace resolves: its stable hostname under the headless Service.
pub fn address(workload: &str, subdomain: &str, member: &Member) -> String {
    format!("{}.{subdomain}", hostname(workload, member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use lockstep_api::workload::GroupStatus;
    use serde_json::json;

    fn with_world(world: &str) -> TrainingWorkloadSpec {
        spec(json!({"network": {"world": world}, "groups": [
            {"name": "zoo", "replicas": 2, "size": 3, "template": {"spec": {"containers": []}}},
            {"name": "abc", "replicas": 1, "size": 2, "template": {"spec": {"containers": []}}}]}))
    }

    #[test]
    fn world_and_rank_run_over_the_chosen_scope() {
        let m = Member::new("zoo", 1, 2);
        let place_in =
            |world| World::whole(&with_world(world)).place(&m).map(|p| (p.world, p.rank, p.completion_index));
        assert_eq!(place_in("Replica"), Some((3, 2, 5)));
        assert_eq!(place_in("Group"), Some((6, 5, 5)));
        assert_eq!(place_in("Workload"), Some((8, 5, 5)));
    }

    #[test]
    fn a_world_over_all_groups_follows_the_order_of_the_spec() {
        let s = with_world("Workload");
        let world = World::whole(&s);
        assert_eq!(world.place(&Member::new("abc", 0, 0)).map(|p| p.rank), Some(6));
        assert_eq!(world.coordinator(&Member::new("abc", 0, 1)), Member::new("zoo", 0, 0));
    }

    #[test]
    fn a_member_beyond_the_replicas_has_no_place() {
        let s = with_world("Group");
        assert_eq!(World::whole(&s).place(&Member::new("zoo", 2, 0)), None);
        assert_eq!(World::whole(&s).place(&Member::new("nobody", 0, 0)), None);
    }

    /// The ledger of a gang that has room for some of the group `zoo`.
    fn partial(indexes: &str) -> TrainingWorkloadStatus {
        let zoo = GroupStatus { name: "zoo".into(), world_indexes: Some(indexes.into()), ..GroupStatus::default() };
        TrainingWorkloadStatus { groups: vec![zoo], ..TrainingWorkloadStatus::default() }
    }

    #[test]
    fn ranks_run_without_gaps_over_the_members_that_have_room() {
        let m = Member::new("zoo", 1, 2);
        let place_in = |world| {
            let s = with_world(world);
            World::of(&s, &partial("1,4-5")).place(&m).map(|p| (p.world, p.rank, p.completion_index))
        };
        assert_eq!(place_in("Replica"), Some((2, 1, 5)));
        assert_eq!(place_in("Group"), Some((3, 2, 5)));
        assert_eq!(place_in("Workload"), Some((5, 2, 5)));
        let s = with_world("Workload");
        let world = World::of(&s, &partial("1,4-5"));
        assert_eq!(world.place(&Member::new("abc", 0, 1)).map(|p| p.rank), Some(4));
        assert_eq!(world.place(&Member::new("zoo", 0, 0)), None, "it has no room");
    }

    #[test]
    fn members_meet_at_the_first_that_has_room() {
        let at = |world, indexes: &str, m| {
            let s = with_world(world);
            World::of(&s, &partial(indexes)).coordinator(&m)
        };
        assert_eq!(at("Group", "1,4-5", Member::new("zoo", 1, 2)), Member::new("zoo", 0, 1));
        assert_eq!(at("Replica", "1,4-5", Member::new("zoo", 1, 2)), Member::new("zoo", 1, 1));
        assert_eq!(at("Workload", "", Member::new("abc", 0, 1)), Member::new("abc", 0, 0));
    }

    #[test]
    fn the_chosen_coordinator_counts_while_it_has_room() {
        let mut s = with_world("Group");
        s.network.coordinator = serde_json::from_value(json!({"group": "zoo", "replica": 1, "index": 0})).unwrap();
        let m = Member::new("zoo", 1, 2);
        assert_eq!(World::of(&s, &partial("1,3,5")).coordinator(&m), Member::new("zoo", 1, 0));
        assert_eq!(World::of(&s, &partial("1,5")).coordinator(&m), Member::new("zoo", 0, 1));
    }

    #[test]
    fn a_group_is_complete_when_all_that_run_have_succeeded() {
        let s = with_world("Group");
        let world = World::of(&s, &partial("0-1"));
        let done = |n| (0..n).map(|i| Member::new("zoo", 0, i)).collect();
        assert!(!world.complete("zoo", &done(1)) && world.complete("zoo", &done(2)));
        assert!(!World::of(&s, &partial("")).complete("zoo", &done(2)), "nobody of it runs");
    }
}
