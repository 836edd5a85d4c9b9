//! What the engine's benchmarks share: the instance format `preempt-quality/1`, and the control
//! arms.

pub mod growth;
pub mod instance;
pub mod mixed;
pub mod passes;
pub mod questions;
pub mod ratio;
pub mod scenes;
