//! Hostnames of members, as Lockstep will set them.

use serde_json::Value;

use super::draft::{Draft, size};

/// Addresses of the members of a group, within the namespace.
pub fn hosts(draft: &Draft, group: &Value) -> Vec<String> {
    let (name, subdomain) = (draft.name(), draft.subdomain());
    let group_name = group["name"].as_str().unwrap_or_default();
    let mut out = Vec::new();
    for replica in 0..draft.replicas(group) {
        for index in 0..size(group) {
            out.push(format!("{name}-{group_name}-{replica}-{index}.{subdomain}"));
        }
    }
    out
}
