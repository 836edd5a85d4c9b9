//! Numbers and names by which members find each other.

use lockstep_api::member::Member;
use lockstep_api::names::hostname;
use lockstep_api::workload::{Group, TrainingWorkloadSpec, WorldScope};

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

/// The member's place. Worlds over several groups number them in the order of the spec. None when the spec has no such
/// member.
pub fn place(spec: &TrainingWorkloadSpec, member: &Member) -> Option<Place> {
    let group = spec.groups.iter().find(|g| g.name == member.group)?;
    if member.replica >= group.replicas || member.index >= group.size {
        return None;
    }
    let completion_index = completion_index(group, member);
    let (world, rank) = match spec.network.world {
        WorldScope::Replica => (group.size, member.index),
        WorldScope::Group => (group.members(), completion_index),
        WorldScope::Workload => {
            let before: i32 = spec.groups.iter().take_while(|g| g.name != group.name).map(Group::members).sum();
            (spec.groups.iter().map(Group::members).sum(), before + completion_index)
        }
    };
    Some(Place { world, rank, completion_index })
}

/// Number of a member in its group.
pub fn completion_index(group: &Group, member: &Member) -> i32 {
    member.replica * group.size + member.index
}

/// The member that the given one meets at: `network.coordinator`, else the first of its world.
pub fn coordinator(spec: &TrainingWorkloadSpec, member: &Member) -> Member {
    if let Some(c) = &spec.network.coordinator {
        return Member::new(c.group.as_str(), c.replica, c.index);
    }
    match spec.network.world {
        WorldScope::Replica => Member::new(member.group.as_str(), member.replica, 0),
        WorldScope::Group => Member::new(member.group.as_str(), 0, 0),
        WorldScope::Workload => {
            let first = spec.groups.iter().find(|g| g.members() > 0).map_or(member.group.as_str(), |g| g.name.as_str());
            Member::new(first, 0, 0)
        }
    }
}

/// Name of a member that every pod of the namespace resolves: its stable hostname under the headless Service.
pub fn address(workload: &str, subdomain: &str, member: &Member) -> String {
    format!("{}.{subdomain}", hostname(workload, member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use serde_json::json;

    fn with_world(world: &str) -> TrainingWorkloadSpec {
        spec(json!({"network": {"world": world}, "groups": [
            {"name": "zoo", "replicas": 2, "size": 3, "template": {"spec": {"containers": []}}},
            {"name": "abc", "replicas": 1, "size": 2, "template": {"spec": {"containers": []}}}]}))
    }

    #[test]
    fn world_and_rank_run_over_the_chosen_scope() {
        let m = Member::new("zoo", 1, 2);
        let place_in = |world| place(&with_world(world), &m).map(|p| (p.world, p.rank, p.completion_index));
        assert_eq!(place_in("Replica"), Some((3, 2, 5)));
        assert_eq!(place_in("Group"), Some((6, 5, 5)));
        assert_eq!(place_in("Workload"), Some((8, 5, 5)));
    }

    #[test]
    fn a_world_over_all_groups_follows_the_order_of_the_spec() {
        let s = with_world("Workload");
        assert_eq!(place(&s, &Member::new("abc", 0, 0)).map(|p| p.rank), Some(6));
        assert_eq!(coordinator(&s, &Member::new("abc", 0, 1)), Member::new("zoo", 0, 0));
    }

    #[test]
    fn a_member_beyond_the_replicas_has_no_place() {
        assert_eq!(place(&with_world("Group"), &Member::new("zoo", 2, 0)), None);
        assert_eq!(place(&with_world("Group"), &Member::new("nobody", 0, 0)), None);
    }
}
