//! The scheduler over a small world: an API server that stores what is written, a controller that
//! makes and deletes pods, and a kube-scheduler that binds them. Time moves by hand.

mod invariants;
mod world;
