//! Result of a command.

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// The workload would not fit.
    DoesNotFit,
    /// A check of the installation has failed.
    Unhealthy,
}
