//! Parts of the small cluster.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::NodeState;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_model::{Node, Resources};

/// Node label of the zone.
pub const ZONE: &str = "zone";

/// Numbers from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number less than `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// One of these, if any.
    pub fn pick<'l, T>(&mut self, of: &'l [T]) -> Option<&'l T> {
        (!of.is_empty()).then(|| &of[self.roll(of.len())])
    }
}

pub fn members_of(group: &str, count: usize) -> Vec<Member> {
    (0..count as i32)
        .map(|ix| Member::new(group, 0, ix))
        .collect()
}

pub fn node_name(ix: usize) -> NodeName {
    format!("node-{ix}").parse().expect("not empty")
}

/// A node with this many accelerators and CPUs.
pub fn node(ix: usize, gpus: usize, cpus: usize) -> Node {
    let zone = if ix < 3 { "a" } else { "b" };
    Node {
        allocatable: resources(&[
            ("cpu", &cpus.to_string()),
            ("memory", "64Gi"),
            ("pods", "30"),
            ("gpu.example/a", &gpus.to_string()),
        ]),
        labels: [(ZONE.to_owned(), zone.to_owned())].into(),
        state: NodeState::default(),
        ..Node::bare(node_name(ix))
    }
}

pub fn resources(pairs: &[(&str, &str)]) -> Resources {
    let quantity =
        |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity((*amount).to_owned()));
    Resources::parse(&pairs.iter().map(quantity).collect()).expect("quantities")
}
