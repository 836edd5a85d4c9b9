//! Scenarios over one shared cluster; each has a namespace and nodes of its own.

mod bad_input;
mod failure;
mod idle;
mod install;
mod life;
mod placement;
mod preemption;
mod readme;
mod restart;
mod samples;
mod steering;
