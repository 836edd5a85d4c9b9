//! How many random questions a property suite asks, and where they come from.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Questions that a suite asks, unless `PROPTEST_CASES` says another number (as a mutation run
/// does, which runs every suite a thousand times).
const CASES: u32 = 10_000;

/// A runner that asks the same questions every time.
pub fn runner() -> TestRunner {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(CASES);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}
