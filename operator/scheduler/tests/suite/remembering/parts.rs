//! What the small cluster is made of.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_model::{Node, Resources};

/// Label of nodes in one zone.
pub const ZONE: &str = "zone";

/// Numbers from a seed.
pub struct Dice(u64);

impl Dice {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Less than `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    /// One of these.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// One of these, if there are any.
    pub fn pick<'l, T>(&mut self, of: &'l [T]) -> Option<&'l T> {
        (!of.is_empty()).then(|| &of[self.roll(of.len())])
    }
}

/// So many members of a group.
pub fn members_of(group: &str, count: usize) -> Vec<Member> {
    (0..count as i32)
        .map(|ix| Member::new(group, 0, ix))
        .collect()
}

/// Name of a node.
pub fn node_name(ix: usize) -> NodeName {
    format!("node-{ix}").parse().expect("not empty")
}

/// A node with so many accelerators and CPUs.
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
        ready: true,
        ..Node::bare(node_name(ix))
    }
}

/// Resources from names and quantities.
pub fn resources(pairs: &[(&str, &str)]) -> Resources {
    let quantity =
        |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity((*amount).to_owned()));
    Resources::parse(&pairs.iter().map(quantity).collect()).expect("quantities")
}
