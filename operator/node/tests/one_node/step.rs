use proptest::prelude::*;

use super::PODS;

/// An event on the node. Numbers select pods.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The training process ends by itself.
    Exit(usize, i32),
    /// The container and its supervisor are killed.
    Kill(usize),
    /// The kubelet starts a container if none runs.
    Start(usize),
    /// The kubelet removes ended containers.
    Remove(usize),
    /// A new pod for the member.
    Replace(usize),
    /// The manager orders the next attempt.
    Order,
    /// The manager handles the failure of one supervised member alone.
    Alone(usize),
    /// The agent's watch stops delivering changes.
    Lag,
    /// The watch has delivered all changes.
    CatchUp,
    /// The agent decides. False: its runtime does not answer.
    Pass(bool),
    /// Its pending publication is written.
    Write,
    /// The link to a supervisor breaks until the supervisor repeats its state.
    Unlink(usize),
    /// The agent restarts with its file.
    Crash,
    /// The agent restarts without its file.
    Forget,
    /// Seconds.
    Tick(i64),
    /// All components work for a while without faults.
    Calm,
}

impl Step {
    pub(super) const NAMES: [&'static str; 16] = [
        "exit", "kill", "start", "remove", "replace", "order", "alone", "lag", "catch up", "pass",
        "write", "unlink", "crash", "forget", "tick", "calm",
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exit(..) => "exit",
            Self::Kill(_) => "kill",
            Self::Start(_) => "start",
            Self::Remove(_) => "remove",
            Self::Replace(_) => "replace",
            Self::Order => "order",
            Self::Alone(_) => "alone",
            Self::Lag => "lag",
            Self::CatchUp => "catch up",
            Self::Pass(_) => "pass",
            Self::Write => "write",
            Self::Unlink(_) => "unlink",
            Self::Crash => "crash",
            Self::Forget => "forget",
            Self::Tick(_) => "tick",
            Self::Calm => "calm",
        }
    }
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = || 0..PODS;
    let code = prop_oneof![Just(0), Just(1), Just(7), Just(137)];
    let step = prop_oneof![
        8 => (pod(), code).prop_map(|(pod, code)| Step::Exit(pod, code)),
        2 => pod().prop_map(Step::Kill),
        10 => pod().prop_map(Step::Start),
        2 => pod().prop_map(Step::Remove),
        1 => pod().prop_map(Step::Replace),
        4 => Just(Step::Order),
        2 => pod().prop_map(Step::Alone),
        2 => Just(Step::Lag),
        4 => Just(Step::CatchUp),
        24 => prop::bool::weighted(0.9).prop_map(Step::Pass),
        10 => Just(Step::Write),
        2 => pod().prop_map(Step::Unlink),
        2 => Just(Step::Crash),
        3 => Just(Step::Forget),
        4 => (1..5i64).prop_map(Step::Tick),
        6 => Just(Step::Calm),
    ];
    prop::collection::vec(step, 20..150)
}
