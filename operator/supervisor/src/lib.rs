//! The supervisor's decisions without I/O, for models in tests.

pub mod machine;
