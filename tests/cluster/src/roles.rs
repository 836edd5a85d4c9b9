//! Comparison of the shipped roles with the calls: no missing and no unused rights.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};

use crate::audit::Call;
use crate::cluster::repository;

/// A right of a role: a verb on a resource of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// API verb.
    pub verb: String,
    /// API group; empty for core.
    pub group: String,
    /// Resource with its subresource.
    pub resource: String,
}

/// Rights of the roles with these names in a rendered stream of manifests.
pub fn grants(rendered: &str, names: &[&str]) -> Result<BTreeSet<Grant>> {
    let mut out = BTreeSet::new();
    for document in rendered.split("\n---\n") {
        let is_wanted = |name: &Option<String>| name.as_deref().is_some_and(|n| names.contains(&n));
        let rules = if document.contains("\nkind: ClusterRole\n") {
            let role: ClusterRole = serde_saphyr::from_str(document)?;
            is_wanted(&role.metadata.name).then_some(role.rules)
        } else if document.contains("\nkind: Role\n") {
            let role: Role = serde_saphyr::from_str(document)?;
            is_wanted(&role.metadata.name).then_some(role.rules)
        } else {
            None
        };
        out.extend(rules.flatten().iter().flatten().flat_map(expand));
    }
    Ok(out)
}

/// Like [`grants`], from the shipped manifests: a file below `config/`, or all files of a folder
/// there.
pub fn shipped(path: &str, names: &[&str]) -> Result<BTreeSet<Grant>> {
    let path = repository().join("config").join(path);
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
    if path.is_file() {
        return grants(&read(&path)?, names);
    }
    let mut manifests = String::new();
    let entries = std::fs::read_dir(&path).with_context(|| path.display().to_string())?;
    for entry in entries {
        manifests.push_str(&read(&entry?.path())?);
        manifests.push_str("\n---\n");
    }
    grants(&manifests, names)
}

fn expand(rule: &PolicyRule) -> Vec<Grant> {
    let mut out = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                out.push(Grant {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                });
            }
        }
    }
    out
}

/// Calls without a right.
pub fn uncovered(grants: &BTreeSet<Grant>, calls: &BTreeSet<Call>) -> Vec<Call> {
    calls
        .iter()
        .filter(|c| !grants.contains(&grant_of(c)))
        .cloned()
        .collect()
}

/// Rights that no call used.
pub fn unused(grants: &BTreeSet<Grant>, calls: &BTreeSet<Call>) -> Vec<Grant> {
    let used: BTreeSet<Grant> = calls.iter().map(grant_of).collect();
    grants.difference(&used).cloned().collect()
}

fn grant_of(call: &Call) -> Grant {
    Grant {
        verb: call.verb.clone(),
        group: call.group.clone(),
        resource: call.resource.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules:\n- apiGroups: [\"\"]\n  resources: [pods]\n  verbs: [get, delete]\n";

    fn call(verb: &str) -> Call {
        Call {
            user: "u".into(),
            verb: verb.into(),
            group: String::new(),
            resource: "pods".into(),
        }
    }

    #[test]
    fn a_call_outside_the_role_and_a_rule_without_a_call_are_found() {
        let grants = grants(ROLE, &["r"]).unwrap();
        let calls = BTreeSet::from([call("get"), call("create")]);
        assert_eq!(uncovered(&grants, &calls), [call("create")]);
        assert_eq!(
            unused(&grants, &calls)
                .iter()
                .map(|g| g.verb.as_str())
                .collect::<Vec<_>>(),
            ["delete"]
        );
    }
}
