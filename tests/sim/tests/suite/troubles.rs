//! Stories made of everything that clusters do and nobody expects, with the invariants of the
//! design as oracles after every step.
//!
//! Varied: nodes (accelerators, a second extended resource, zones), workloads (shapes, sizes,
//! policies, scopes, claims, ports, affinity, grace periods, failure policies), what happens
//! (`lockstep_sim::trouble`), who runs next. Not varied: the versions of the cluster, topology
//! constraints, dependencies between groups, the supervised tier.

use lockstep_sim::oracle::Oracles;
use lockstep_sim::trouble::{Mix, Settings, Story, Trouble, TroubleKind};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Troubles of a story.
const LONGEST: usize = 40;
/// Steps after each, at most.
const STEPS: usize = 60;

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok().and_then(|n| n.parse().ok());
    said.unwrap_or(otherwise)
}

/// What all stories together have played.
#[derive(Default)]
struct Played {
    mix: Mix,
    turns: u64,
    looked: std::collections::BTreeMap<&'static str, usize>,
}

impl Played {
    fn add(&mut self, story: &Story, oracles: &Oracles) {
        self.mix.add(&story.mix);
        self.turns += story.cluster.turns;
        for (which, times) in &oracles.looked {
            *self.looked.entry(which).or_default() += times;
        }
    }
}

fn play(seed: u64, troubles: &[u64], played: &Mutex<Played>) {
    let mut story = Story::new(&Settings { seed, steps: STEPS });
    for number in troubles {
        story.play(Trouble::draw(*number));
    }
    story.end();
    played.lock().add(&story, &story.oracles);
}

/// The same stories in every run, unless `SIM_SEED` says another number; `SIM_STORIES` of them.
/// `SIM_STORY` plays one: its seed and its numbers, as a failure shows them.
#[test]
fn whatever_happens_the_invariants_hold_and_in_the_end_everything_rests() {
    if let Ok(story) = std::env::var("SIM_STORY") {
        let numbers = story.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<u64> = numbers.filter_map(|n| n.parse().ok()).collect();
        return play(numbers[0], &numbers[1..], &Mutex::default());
    }
    let stories = number("SIM_STORIES", 130);
    let seed = number("SIM_SEED", 1).to_le_bytes();
    let seed: Vec<u8> = seed.iter().copied().cycle().take(32).collect();
    let config = Config {
        cases: u32::try_from(stories).unwrap(),
        failure_persistence: None,
        max_shrink_iters: u32::try_from(number("SIM_SHRINK", 100)).unwrap(),
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let played = Mutex::new(Played::default());
    let troubles = prop::collection::vec(any::<u64>(), 5..LONGEST);
    let held =
        TestRunner::new_with_rng(config, rng).run(&(any::<u64>(), troubles), |(seed, troubles)| {
            play(seed, &troubles, &played);
            Ok::<_, TestCaseError>(())
        });
    if let Err(why) = held {
        panic!("{why}");
    }
    let Played { mix, turns, looked } = played.into_inner();
    println!("{turns} turns; looked: {looked:?}; {mix:?}");
    let rare = mix.rarer_than(usize::try_from(stories / 60).unwrap());
    assert_eq!(rare, Vec::<TroubleKind>::new(), "these hardly happened");
}
