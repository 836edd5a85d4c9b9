#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    DoesNotFit,
    Unhealthy,
}
