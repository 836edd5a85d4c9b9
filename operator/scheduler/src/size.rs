//! Size limit of an API object: one status contains a placement and the victims of a preemption.

use chrono::{DateTime, Utc};
use lockstep_api::scheduling::{Placement, ReservedNode, Victim};

/// etcd's default request limit of 1.5 MiB, less 256 KiB for the rest of the object.
const LIMIT: usize = 1_572_864 - 262_144;
/// Upper bound of a list entry, in bytes. Names and member ranges have at most 253 characters.
/// Short lists are not measured.
const LONGEST: usize = 800;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub members: usize,
    pub victims: usize,
    pub bytes: usize,
    pub limit: usize,
}

/// Whether a placement with these members and victims fits into a status.
pub(crate) fn check(
    members: usize,
    placement: impl FnOnce() -> Placement,
    victims: &[Victim],
    now: DateTime<Utc>,
) -> Result<(), TooLarge> {
    if (members + victims.len()) * LONGEST <= LIMIT {
        return Ok(());
    }
    // Includes the times of each victim's requests, which are added later.
    let victims_later = victims.iter().map(|victim| Victim {
        checkpoint_deadline: (victim.kind == "PodGroup").then_some(now),
        eviction_requested_at: Some(now),
        ..victim.clone()
    });
    let placement = bytes(&placement());
    let bytes = placement
        + victims_later
            .map(|victim| bytes(&victim) + 1)
            .sum::<usize>();
    if bytes <= LIMIT {
        return Ok(());
    }
    Err(TooLarge {
        members,
        victims: victims.len(),
        bytes,
        limit: LIMIT,
    })
}

pub(crate) fn fits(nodes: &[ReservedNode]) -> bool {
    nodes.len() * LONGEST <= LIMIT || nodes.iter().map(bytes).sum::<usize>() <= LIMIT
}

fn bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 2, |text| text.len())
}

#[cfg(test)]
mod tests {
    use lockstep_api::scheduling::NodePlacement;

    use super::*;

    fn at() -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_000, 123_456_789).unwrap()
    }

    /// A placement with `on_each` members per node, and node names of `name` characters.
    fn spread(group: &str, members: usize, on_each: usize, name: usize) -> Placement {
        let nodes = (0..members).step_by(on_each).map(|first| NodePlacement {
            node: format!("{first:0>name$}"),
            members: (first..first + on_each)
                .map(|m| format!("{group}/{m}/0"))
                .collect(),
        });
        Placement {
            id: "0123456789abcdef".into(),
            members: members as i32,
            nodes: nodes.collect(),
            ..Placement::default()
        }
    }

    fn checked(placement: &Placement, victims: &[Victim]) -> Result<(), TooLarge> {
        check(
            placement.members as usize,
            || placement.clone(),
            victims,
            at(),
        )
    }

    fn victims(pods: usize) -> Vec<Victim> {
        let victim = |n: usize| Victim {
            kind: "Pod".into(),
            namespace: "team".into(),
            name: format!("trainer-{n:0>40}"),
            uid: format!("12345678-1234-1234-1234-{n:012}"),
            priority: 1000,
            pods: 1,
            cost: 1_000_000,
            lost_work: 1_000_000,
            unit: None,
            checkpoint_deadline: None,
            eviction_requested_at: None,
        };
        (0..pods).map(victim).collect()
    }

    #[test]
    fn ten_thousand_members_on_as_many_nodes_fit_and_twice_as_many_do_not() {
        assert_eq!(checked(&spread("workers", 10_000, 1, 40), &[]), Ok(()));
        let too_large = checked(&spread("workers", 20_000, 1, 40), &[]).unwrap_err();
        assert!(too_large.bytes > too_large.limit && too_large.members == 20_000);
    }

    #[test]
    fn the_most_members_fit_where_eight_share_a_node() {
        assert_eq!(checked(&spread("workers", 20_000, 8, 63), &[]), Ok(()));
    }

    #[test]
    fn victims_count_with_the_placement() {
        let placement = spread("workers", 4000, 1, 40);
        assert_eq!(checked(&placement, &victims(3000)), Ok(()));
        let too_large = checked(&placement, &victims(9000)).unwrap_err();
        assert_eq!(too_large.victims, 9000);
    }

    #[test]
    fn what_is_not_measured_fits_whatever_the_names() {
        let longest = spread(&"g".repeat(63), LIMIT / LONGEST, 1, 253);
        assert!(bytes(&longest) <= LIMIT);
    }
}
