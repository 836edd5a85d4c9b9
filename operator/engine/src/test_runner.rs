//! Number and source of random cases in property suites.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Cases per suite, unless `PROPTEST_CASES` overrides it. A mutation run executes every suite a
/// thousand times.
const CASES: u32 = 10_000;

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
