//! Methods of the search that a benchmark can leave out.

/// A method of the search. `docs/engine.md` states what each contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Lagrangian relaxation. Without it, greedy covering starts from the empty set.
    Relaxation,
    /// Claims of the relaxation. Without them, the capacity of every node is divided.
    Claims,
    /// Multipliers around the best one.
    Multipliers,
    /// New prices for units that exceed a budget.
    Penalties,
    /// Exchange of victims.
    Exchanges,
    /// Exchange of two victims at once.
    Pairs,
    /// Covers by their value to several shapes. Without them, units are evicted until the gang fits.
    Worth,
    /// The cheapest cover that is worth the whole remainder.
    AtOnce,
    /// Prices of pods, and restarts from them.
    Prices,
    /// Exchange of two patterns at once.
    TwoPatterns,
    /// The search over patterns of domains.
    ReplicaPatterns,
    /// The division of `minCount` by the price of further pods.
    Divisions,
}
