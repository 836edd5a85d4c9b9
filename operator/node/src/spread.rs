//! Spreads the status writes of nodes over time: all nodes of a large gang have changes at once.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use lockstep_api::restart_order::DomainOrder;

/// Members whose nodes write at once. A restart of so many members stays below one second.
const AT_ONCE: u32 = 100;

/// Delay per further member. 1000 small writes per second leave capacity on the API server.
const EACH: Duration = Duration::from_millis(1);

/// Delay of a node; constant, because it depends only on the name.
pub(super) fn slot(node: &str, order: &DomainOrder) -> Duration {
    let beyond = u32::try_from(order.world)
        .unwrap_or_default()
        .saturating_sub(AT_ONCE);
    (EACH * beyond).mul_f64(place(node))
}

/// A constant position from 0 to 1.
fn place(node: &str) -> f64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(node.as_bytes());
    let upper = u32::try_from(hasher.finish() >> 32).unwrap_or(u32::MAX);
    f64::from(upper) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(members: i32) -> Vec<Duration> {
        let order = DomainOrder {
            world: members,
            ..DomainOrder::default()
        };
        let nodes = (0..members).map(|i| format!("node-{i}"));
        nodes.map(|node| slot(&node, &order)).collect()
    }

    #[test]
    fn up_to_a_hundred_members_are_reported_at_once() {
        for members in [-1, 0, 1, 8, 100] {
            assert!(slots(members).iter().all(Duration::is_zero), "{members}");
        }
    }

    #[test]
    fn the_nodes_of_a_large_gang_spread_evenly_over_a_time_that_grows_with_it() {
        for (members, window) in [(1000, 900), (5000, 4900)] {
            let slots = slots(members);
            let window = Duration::from_millis(window);
            assert!(slots.iter().all(|s| *s <= window));
            for tenth in 0..10 {
                let (from, to) = (window * tenth / 10, window * (tenth + 1) / 10);
                let here = slots.iter().filter(|s| (from..to).contains(s)).count();
                let share = slots.len() / 10;
                assert!((share / 2..share * 2).contains(&here), "{here} of {share}");
            }
            assert_eq!(slots, self::slots(members));
        }
    }
}
