//! Stories of unexpected events, with the invariants of the design as oracles after every step.
//!
//! Varied: nodes (accelerators, a second extended resource, zones), workloads (shapes, sizes,
//! policies, scopes, claims, ports, affinity, grace periods, failure policies), troubles
//! (`lockstep_sim::trouble`), dependencies between groups, the next actor, clocks of nodes, and
//! progress of supervised gangs. Not varied: versions of the cluster, topology constraints.

use lockstep_api::workload::CheckpointOutcome;
use lockstep_sim::oracle::Oracles;
use lockstep_sim::trouble::{Mix, Settings, Story, Trouble, TroubleKind};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

const LONGEST: usize = 40;
/// Most steps after each trouble. More in stories whose effects need time.
const STEPS: usize = 60;
const MANY_STEPS: usize = 200;
/// Least turns of a story on average.
const TURNS: u64 = 500;

fn number(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok().and_then(|n| n.parse().ok());
    said.unwrap_or(otherwise)
}

/// Sum of all stories.
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

#[derive(Clone, Copy)]
struct Kind<'a> {
    trains: bool,
    announces: bool,
    troubles: &'a [TroubleKind],
}

fn play(kind: Kind<'_>, seed: u64, troubles: &[u64], played: &Mutex<Played>) {
    let mut story = Story::new(&Settings {
        seed,
        steps: if kind.trains { MANY_STEPS } else { STEPS },
        trains: kind.trains,
        announces: kind.announces,
    });
    for number in troubles {
        story.play(Trouble::draw_from(kind.troubles, *number));
    }
    story.end();
    played.lock().add(&story, &story.oracles);
}

/// The same stories in every run; `SIM_SEED` and `SIM_STORIES` override seed and number.
/// `SIM_STORY` replays one story: seed and numbers from a failure. Each trouble must have an effect
/// once in `once_in` stories. By their weights, all have one several times as often, so the check does
/// not fail by chance.
fn stories(kind: Kind<'_>, otherwise: u64, once_in: u64) -> Option<Played> {
    if let Ok(story) = std::env::var("SIM_STORY") {
        let numbers = story.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<u64> = numbers.filter_map(|n| n.parse().ok()).collect();
        play(kind, numbers[0], &numbers[1..], &Mutex::default());
        return None;
    }
    let stories = number("SIM_STORIES", otherwise);
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
            play(kind, seed, &troubles, &played);
            Ok::<_, TestCaseError>(())
        });
    if let Err(why) = held {
        panic!("{why}");
    }
    let played = played.into_inner();
    let Played { mix, turns, looked } = &played;
    println!("{stories} stories, {turns} turns; looked: {looked:?}; {mix:?}");
    assert!(
        *turns >= stories * TURNS,
        "{turns} turns in {stories} stories"
    );
    let mut rare = mix.rarer_than(usize::try_from(stories / once_in).unwrap());
    rare.retain(|trouble| kind.troubles.contains(trouble));
    assert_eq!(rare, Vec::<TroubleKind>::new(), "these hardly happened");
    Some(played)
}

/// Faults of training steps: too rare in general stories.
const STALLS: &[TroubleKind] = &[
    TroubleKind::Stalls,
    TroubleKind::SlowsDown,
    TroubleKind::OnlySaves,
    TroubleKind::NeverBegins,
    TroubleKind::StallsUnheard,
];

/// Faults that can delay reports of such steps, or look like them.
const BESIDE_STALLS: &[TroubleKind] = &[
    TroubleKind::NewTrainer,
    TroubleKind::Nonce,
    TroubleKind::DeletePod,
    TroubleKind::LoseNode,
    TroubleKind::FindNode,
    TroubleKind::Reboot,
    TroubleKind::RestartKubelet,
    TroubleKind::AgentForgets,
    TroubleKind::Crash,
    TroubleKind::LostAnswer,
    TroubleKind::Relist,
    TroubleKind::Lag,
    TroubleKind::NoLag,
    TroubleKind::Pause,
];

/// Occasions of requests for checkpoints: rare in general stories, whose processes answer none.
const OCCASIONS: &[TroubleKind] = &[
    TroubleKind::NewTrainer,
    TroubleKind::RequestCheckpoint,
    TroubleKind::Suspend,
    TroubleKind::SuspendBriefly,
    TroubleKind::Nonce,
    TroubleKind::Resize,
    TroubleKind::DeletePod,
    TroubleKind::EvictPod,
];

/// Faults that can delay a request or its answer, or be taken for one.
const BESIDE_OCCASIONS: &[TroubleKind] = &[
    TroubleKind::LoseNode,
    TroubleKind::FindNode,
    TroubleKind::RestartKubelet,
    TroubleKind::AgentForgets,
    TroubleKind::AgentAway,
    TroubleKind::Crash,
    TroubleKind::LostAnswer,
    TroubleKind::Relist,
    TroubleKind::Lag,
    TroubleKind::NoLag,
];

/// Signals of nodes, time for their deadlines, and faults that can delay a move or look like one.
const SIGNALS: &[TroubleKind] = &[
    TroubleKind::Signal,
    TroubleKind::SignalEnds,
    TroubleKind::SignalRepeats,
    TroubleKind::SignalMode,
    TroubleKind::Minutes,
    TroubleKind::Suspend,
    TroubleKind::Nonce,
    TroubleKind::DeletePod,
    TroubleKind::LoseNode,
    TroubleKind::FindNode,
    TroubleKind::Crash,
    TroubleKind::Lag,
    TroubleKind::NoLag,
];

#[test]
fn requests_for_checkpoints_have_every_outcome_and_the_invariants_hold() {
    let kind = Kind {
        trains: true,
        announces: false,
        troubles: &[OCCASIONS, BESIDE_OCCASIONS].concat(),
    };
    if let Some(Played { looked, .. }) = stories(kind, 25, 20) {
        for outcome in CheckpointOutcome::ALL {
            let times = looked.get(outcome.as_str()).copied().unwrap_or(0);
            println!("{times} requests {}", outcome.as_str());
            assert!(times >= 3, "too few outcomes {}", outcome.as_str());
        }
    }
}

#[test]
fn a_gang_moves_once_for_each_signal_and_saves_before_each_deadline() {
    let kind = Kind {
        trains: true,
        announces: true,
        troubles: SIGNALS,
    };
    if let Some(Played { looked, .. }) = stories(kind, 25, 20) {
        let stories = number("SIM_STORIES", 25) as usize;
        let (moves, deadlines) = (looked["moves"], looked["deadlines"]);
        println!("{moves} moves, {deadlines} deadlines of running gangs");
        assert!(moves >= stories / 5 && deadlines >= stories / 2);
    }
}

#[test]
fn whatever_happens_the_invariants_hold_and_in_the_end_everything_rests() {
    let all = TroubleKind::ALL.iter().map(|(kind, _)| *kind);
    let troubles: Vec<TroubleKind> = all
        .filter(|kind| !STALLS.contains(kind) && *kind != TroubleKind::Minutes)
        .collect();
    let kind = Kind {
        trains: false,
        announces: false,
        troubles: &troubles,
    };
    stories(kind, 130, 60);
}

#[test]
fn only_hung_members_are_detected_and_each_is_handled_once() {
    let kind = Kind {
        trains: true,
        announces: false,
        troubles: &[STALLS, BESIDE_STALLS].concat(),
    };
    if let Some(Played { looked, .. }) = stories(kind, 40, 8) {
        let (told, answered) = (looked["hangs told"], looked["hangs answered"]);
        println!("{told} hangs told, {answered} answered as hangs");
        let enough = told as u64 >= number("SIM_STORIES", 40);
        assert!(enough && 2 * answered >= told, "{answered} of {told}");
    }
}
