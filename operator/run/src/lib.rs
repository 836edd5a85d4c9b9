//! What the supervisor decides, without its shell: for models of it in tests.

pub mod machine;
