//! Hostnames of members, as Lockstep will set them.

use serde_json::Value;

use crate::draft::{Draft, size};
use crate::error::Result;

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

/// Replaces the hostnames that the origin's controller gives to members by those of Lockstep, in
/// all strings of the templates: `<job>-<task>-<n>.<job>` by `<job>-<task>-<n>-0.<job>`.
pub fn rename(draft: &mut Draft) -> Result<bool> {
    let (name, subdomain) = (draft.name().to_owned(), draft.subdomain().to_owned());
    let mut names = Vec::new();
    for group in draft.groups() {
        let group_name = group["name"].as_str().unwrap_or_default();
        for replica in 0..draft.replicas(group) {
            let old = format!("{name}-{group_name}-{replica}.{subdomain}");
            names.push((old, format!("{name}-{group_name}-{replica}-0.{subdomain}")));
        }
    }
    let mut renamed = false;
    for group in draft.groups_mut()? {
        rename_in(
            &mut group["template"],
            &format!(".{subdomain}"),
            &names,
            &mut renamed,
        );
    }
    Ok(renamed)
}

fn rename_in(value: &mut Value, domain: &str, names: &[(String, String)], renamed: &mut bool) {
    match value {
        Value::String(text) if text.contains(domain) => {
            for (old, new) in names {
                if text.contains(old.as_str()) {
                    *text = text.replace(old.as_str(), new);
                    *renamed = true;
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                rename_in(item, domain, names, renamed);
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                rename_in(field, domain, names, renamed);
            }
        }
        _ => {}
    }
}
