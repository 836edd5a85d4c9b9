//! Trimmed pods and the objects that group them: gangs, native groups, disruption budgets.

pub mod admitted;
pub mod foreign;
pub mod gang;
pub mod native_group;
pub mod pdb;
pub mod pod;
pub mod pod_view;
pub(crate) mod priority_class;
pub mod refusal;
pub mod resources;
pub mod slots;
