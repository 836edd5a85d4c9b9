//! The engine through its public functions.

mod kep;
mod least_cost;
mod min_count;
mod placement;
mod planted;
mod properties;
mod queue;
mod racks;
#[path = "../../src/test_runner.rs"]
mod runs;
#[path = "../../../../tests/bench/src/scenes.rs"]
#[allow(dead_code, reason = "of these scenes only the racks are used")]
mod scenes;
mod several_shapes;
mod support;
