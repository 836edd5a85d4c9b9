//! How a command ended.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked for.
    Done,
    /// The workload would not fit.
    DoesNotFit,
    /// Something keeps Lockstep from working.
    Unhealthy,
}
