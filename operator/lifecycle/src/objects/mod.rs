mod affinity;
pub(crate) mod env;
pub(crate) mod hash;
mod metadata;
pub(crate) mod pod;
mod restart;
pub(crate) mod scheduling;
pub(crate) mod supervise;
pub(crate) mod training;
