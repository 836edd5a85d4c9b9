//! Compares the flow with an enumeration of all cuts.

use proptest::prelude::*;

use super::*;
use crate::test_runner::runner;

#[test]
fn max_flow_returns_the_minimum_cut_again_after_a_reset() {
    // Two projects that share the more expensive of two tools.
    let mut network = Network::new(6);
    let (source, sink) = (0, 5);
    let profits = [
        network.connect(source, 1, 10),
        network.connect(source, 2, 4),
    ];
    let tools = [network.connect(3, sink, 8), network.connect(4, sink, 3)];
    let needs = [(1, 3), (2, 3), (2, 4)].map(|(p, t)| network.connect(p, t, UNCUTTABLE));
    assert_eq!(network.max_flow(source, sink), 11);
    assert!(
        network.on_source_side(1) && network.on_source_side(2),
        "both projects are profitable together"
    );

    network.reset(profits[0], 7);
    network.reset(profits[1], 3);
    network.reset(tools[0], 8);
    network.reset(tools[1], 3);
    for edge in needs {
        network.reset(edge, UNCUTTABLE);
    }
    assert_eq!(network.max_flow(source, sink), 10);
    assert!(
        !network.on_source_side(1) && !network.on_source_side(2),
        "no project is profitable after the reset"
    );
}

#[test]
fn max_flow_equals_the_capacity_of_the_minimum_cut_on_every_call() {
    const VERTICES: usize = 8;
    let edges = prop::collection::vec((0..VERTICES - 1, 1..VERTICES, 0..5i128, 0..5i128), 10..24);
    let result = runner().run(&edges, |edges| {
        let mut network = Network::new(VERTICES);
        let (source, sink) = (0, VERTICES - 1);
        let ordinals: Vec<usize> = edges
            .iter()
            .map(|&(from, to, _, _)| network.connect(from, to, 0))
            .collect();
        for again in [false, true] {
            let capacity = |edge: &(usize, usize, i128, i128)| if again { edge.3 } else { edge.2 };
            for (&ordinal, edge) in ordinals.iter().zip(&edges) {
                network.reset(ordinal, capacity(edge));
            }
            let costs = |cheapest_nodes: &dyn Fn(usize) -> bool| -> i128 {
                edges
                    .iter()
                    .filter(|e| cheapest_nodes(e.0) && !cheapest_nodes(e.1))
                    .map(capacity)
                    .sum()
            };
            let sides = (0u32..1 << VERTICES)
                .filter(|bits| bits >> source & 1 == 1 && bits >> sink & 1 == 0);
            let cheapest = sides.map(|bits| costs(&|v| bits >> v & 1 == 1)).min();
            let flow = network.max_flow(source, sink);
            prop_assert_eq!(Some(flow), cheapest);
            prop_assert_eq!(
                costs(&|v| network.on_source_side(v)),
                flow,
                "the capacity across the reported cut equals the flow"
            );
        }
        Ok(())
    });
    assert_eq!(result.map_err(|error| error.to_string()), Ok(()));
}
