//! Preemption rules: the manager's configuration, and flags that override it.

use std::time::Duration;

use clap::{Args as Group, ValueEnum};
use lockstep_engine as engine;
use lockstep_model::{Rules, VictimScope};

/// Flags that override keys of `scheduler.preemption` and `scheduler.reservations`, which have the
/// same names. Without a flag, the manager's configuration applies, or the defaults if it is not
/// readable.
#[derive(Clone, Debug, Default, Group)]
pub struct PreemptionArgs {
    /// How victims are chosen; overrides `algorithm` of the manager's configuration.
    #[arg(long, value_enum)]
    pub algorithm: Option<AlgorithmArg>,
    /// Order of victims by priority or lost work; overrides `order` of the configuration.
    #[arg(long, value_enum)]
    pub order: Option<OrderArg>,
    /// Minimum runtime in seconds before eviction; overrides `minRuntimeSeconds` of the configuration.
    #[arg(long, value_name = "SECONDS")]
    pub min_runtime_seconds: Option<u64>,
    /// Depth of follow-on evictions in a victim's cost; overrides `followOnDepth` of the configuration.
    #[arg(long, value_name = "DEPTH", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub follow_on_depth: Option<u8>,
    /// Which pods may be evicted; overrides `victims.scope` of the configuration.
    #[arg(long, value_enum)]
    pub victims: Option<VictimsArg>,
    /// Number of queued gangs with a reservation, per priority; overrides `reservations.perPriority` of
    /// the configuration.
    #[arg(long, value_name = "NUMBER")]
    pub reservations_per_priority: Option<usize>,
}

impl PreemptionArgs {
    /// Applies the flags to the rules. Returns the flags that differ from them.
    pub fn change(&self, rules: &mut Rules) -> Vec<&'static str> {
        let min_runtime = self.min_runtime_seconds.map(Duration::from_secs);
        let reservations = self.reservations_per_priority;
        let flags = [
            ("--algorithm", set(&mut rules.algorithm, self.algorithm)),
            ("--order", set(&mut rules.order, self.order)),
            (
                "--min-runtime-seconds",
                set(&mut rules.min_runtime, min_runtime),
            ),
            (
                "--follow-on-depth",
                set(&mut rules.follow_on_depth, self.follow_on_depth),
            ),
            ("--victims", set(&mut rules.victims.scope, self.victims)),
            (
                "--reservations-per-priority",
                set(&mut rules.reservations_per_priority, reservations),
            ),
        ];
        let differ = flags.into_iter().filter(|(_, differs)| *differs);
        differ.map(|(flag, _)| flag).collect()
    }
}

/// Applies a flag. Returns true if its value differs.
fn set<T: PartialEq>(now: &mut T, flag: Option<impl Into<T>>) -> bool {
    let Some(desired) = flag.map(Into::into) else {
        return false;
    };
    let differs = *now != desired;
    *now = desired;
    differs
}

/// Algorithm by which victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmArg {
    /// The least work lost.
    LeastCost,
    /// KEP-5710 as released.
    Kep,
}

/// First criterion if priorities and lost work disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// The lowest priorities whose eviction frees enough capacity.
    StrictPriority,
    /// The least lost work, regardless of priority.
    LeastWork,
}

/// Which work may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VictimsArg {
    /// Pods that hold an extended resource requested by the gang.
    Accelerators,
    /// Gangs only.
    Gangs,
    /// Everything of lower priority.
    Any,
}

impl From<VictimsArg> for VictimScope {
    fn from(victims: VictimsArg) -> Self {
        match victims {
            VictimsArg::Accelerators => Self::Accelerators,
            VictimsArg::Gangs => Self::Gangs,
            VictimsArg::Any => Self::Any,
        }
    }
}

impl From<AlgorithmArg> for engine::Algorithm {
    fn from(algorithm: AlgorithmArg) -> Self {
        match algorithm {
            AlgorithmArg::LeastCost => Self::LeastCost,
            AlgorithmArg::Kep => Self::Kep,
        }
    }
}

impl From<OrderArg> for engine::VictimOrder {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::StrictPriority => Self::StrictPriority,
            OrderArg::LeastWork => Self::LeastWork,
        }
    }
}
