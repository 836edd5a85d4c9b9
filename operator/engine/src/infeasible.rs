//! Why a gang does not fit, as data.

use thiserror::Error;

use crate::problem::{DimIx, DomainIx, KeyIx, ShapeIx};

/// A topology domain, after the domains that contain it: keys and domains, outermost level first.
pub type DomainPath = Vec<(KeyIx, DomainIx)>;

/// The tightest reason why a gang does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Shape that does not fit.
    pub shape: ShapeIx,
    /// Number of its pods that do not fit.
    pub pods: u32,
    /// Resource that runs out first.
    pub dim: DimIx,
    /// Missing amount for these pods.
    pub short_by: i64,
    /// Domain with the smallest shortage, if the gang or its replicas must share a domain. Otherwise
    /// empty.
    pub domain: DomainPath,
    /// True if the shortage remains after evicting all permitted work.
    pub evicting: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Infeasible {
    /// Insufficient capacity.
    #[error("{}", ByOrdinal(.0))]
    InsufficientCapacity(Shortfall),
    /// Insufficient capacity, and the gang may not preempt.
    #[error("{}, and the gang may not preempt", ByOrdinal(.0))]
    MayNotPreempt(Shortfall),
    /// Each shape fits alone. The search spent its steps without a placement for all shapes and
    /// without a proof that there is none.
    #[error("no placement of all shapes found in {steps} search steps")]
    GaveUp {
        /// Spent steps.
        steps: u64,
    },
    /// The demand is inconsistent.
    #[error("{0}")]
    BadDemand(&'static str),
}

impl Infeasible {
    /// The shortfall, if capacity is the reason.
    pub fn shortfall(&self) -> Option<&Shortfall> {
        match self {
            Self::InsufficientCapacity(s) | Self::MayNotPreempt(s) => Some(s),
            Self::GaveUp { .. } | Self::BadDemand(_) => None,
        }
    }

    /// Message with the caller's names of resources and domains.
    pub fn describe(&self, names: &dyn Names) -> String {
        let Some(short) = self.shortfall() else {
            return self.to_string();
        };
        let domain = short.domain.iter();
        let domain: Vec<String> = domain.map(|&(key, at)| names.domain(key, at)).collect();
        let within = if domain.is_empty() { "" } else { " in " };
        format!(
            "insufficient {}{within}{}: {} {} {} more{}{}",
            names.resource(short.dim),
            domain.join(", "),
            short.pods,
            if short.pods == 1 {
                "pod needs"
            } else {
                "pods need"
            },
            names.amount(short.dim, short.short_by),
            if short.evicting {
                "; preemption cannot free enough"
            } else {
                ""
            },
            if matches!(self, Self::MayNotPreempt(_)) {
                "; the gang may not preempt: preemptionPolicy of the workload or its PriorityClass is Never"
            } else {
                ""
            },
        )
    }
}

/// Names of ordinals, for messages.
pub trait Names {
    /// Name of a resource.
    fn resource(&self, dim: DimIx) -> String;
    /// An amount of a resource, with its unit if it has one.
    fn amount(&self, dim: DimIx, amount: i64) -> String;
    /// Name of a topology domain.
    fn domain(&self, key: KeyIx, domain: DomainIx) -> String;
}

struct ByOrdinal<'a>(&'a Shortfall);

impl std::fmt::Display for ByOrdinal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.0;
        write!(
            f,
            "{} pods of shape {} do not fit: resource {} is short by {}",
            s.pods, s.shape, s.dim, s.short_by
        )?;
        for (key, domain) in &s.domain {
            write!(f, " in domain {domain} of key {key}")?;
        }
        if s.evicting {
            write!(f, "; preemption cannot free enough")?;
        }
        Ok(())
    }
}
