//! Result of a command.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    DoesNotFit,
    /// A check of the installation has failed.
    Unhealthy,
}
