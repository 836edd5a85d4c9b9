//! What the manager's configuration says of preemption, as flags.

use std::time::Duration;

use clap::{Args as Group, ValueEnum};
use lockstep_engine as engine;
use lockstep_model::{Rules, VictimRules, VictimScope};

/// The parts of the manager's configuration that the answer depends on; names and defaults are
/// those of `scheduler.preemption` and `scheduler.reservations`.
#[derive(Debug, Group)]
pub struct PreemptionArgs {
    /// How victims are chosen; as `algorithm` of the manager's configuration.
    #[arg(long, value_enum, default_value = "least-cost")]
    pub algorithm: AlgorithmArg,
    /// What comes first when priorities and lost work disagree; as `order` of the configuration.
    #[arg(long, value_enum, default_value = "strict-priority")]
    pub order: OrderArg,
    /// Seconds that work runs before it may be evicted; as `minRuntimeSeconds` of the
    /// configuration.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub min_runtime_seconds: u64,
    /// Evictions caused in turn that count towards a victim's cost; as `followOnDepth` of the
    /// configuration.
    #[arg(long, value_name = "DEPTH", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub follow_on_depth: u8,
    /// Which work may be evicted; as `victims.scope` of the configuration.
    #[arg(long, value_enum, default_value = "accelerators")]
    pub victims: VictimsArg,
    /// For how many waiting gangs of each priority capacity is reserved; as
    /// `reservations.perPriority` of the configuration.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    pub reservations_per_priority: usize,
}

impl From<&PreemptionArgs> for Rules {
    fn from(args: &PreemptionArgs) -> Self {
        Self {
            algorithm: args.algorithm.into(),
            order: args.order.into(),
            min_runtime: Duration::from_secs(args.min_runtime_seconds),
            follow_on_depth: args.follow_on_depth,
            victims: VictimRules {
                scope: args.victims.into(),
                ..VictimRules::default()
            },
            reservations_per_priority: args.reservations_per_priority,
            ..Self::default()
        }
    }
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmArg {
    /// The least work lost.
    LeastCost,
    /// KEP-5710 as released.
    Kep,
}

/// What comes first when priorities and lost work disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// The lowest priorities whose eviction frees enough capacity.
    StrictPriority,
    /// The least work, whatever its priority.
    LeastWork,
}

/// Which work may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VictimsArg {
    /// What holds an extended resource that the gang asks for.
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
