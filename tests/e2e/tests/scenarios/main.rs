//! Scenarios over one shared cluster; each has a namespace and nodes of its own.

mod life;
