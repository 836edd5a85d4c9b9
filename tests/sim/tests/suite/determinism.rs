//! The same seed gives the same story.

use lockstep_sim::Solo;
use lockstep_sim::api::Write;
use lockstep_sim::solo::gang;

fn story(seed: u64) -> Vec<Write> {
    let mut w = Solo::with_seed(seed, gang(3));
    for _ in 0..600 {
        w.step();
    }
    for pod in w.pods() {
        w.exit_pod(&pod, 1);
    }
    for _ in 0..600 {
        w.step();
    }
    w.log()
}

#[test]
fn the_same_seed_writes_the_same_log() {
    let (first, second) = (story(7), story(7));
    assert!(first.len() > 50, "a story in which something happens");
    assert_eq!(first, second);
    assert_ne!(first, story(8));
}

#[test]
fn settling_writes_the_same_log() {
    let settled = || {
        let mut w = Solo::new(gang(3));
        w.settle();
        w.exit("g", 1, 9);
        w.settle();
        w.log()
    };
    assert_eq!(settled(), settled());
}
