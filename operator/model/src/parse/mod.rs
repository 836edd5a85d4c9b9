//! Parts of API objects from which the trimmed objects are read.

pub mod partial;
pub mod quota_partial;
pub mod volumes_partial;
