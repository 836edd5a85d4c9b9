//! Which shipped role grants a right, for the remedies of refused requests.

use k8s_openapi::api::rbac::v1::ClusterRole;

/// Name and rules of the role for a namespace. `lockstep-batch-user` aggregates the other roles.
const OF_NAMESPACE: (&str, &[&str]) = (
    "lockstep-batch-user",
    &[
        include_str!("../../../config/rbac/member_viewer_role.yaml"),
        include_str!("../../../config/rbac/trainingworkload_editor_role.yaml"),
        include_str!("../../../config/rbac/trainingworkload_viewer_role.yaml"),
    ],
);
/// Role for the dashboard over the whole cluster.
const DASHBOARD: &str = "lockstep-dashboard";
/// Roles for the whole cluster.
const OF_CLUSTER: [(&str, &[&str]); 3] = [
    (
        "lockstep-whatif",
        &[include_str!("../../../config/rbac/whatif_role.yaml")],
    ),
    (
        "lockstep-oncall",
        &[include_str!("../../../config/rbac/oncall_role.yaml")],
    ),
    (
        DASHBOARD,
        &[include_str!("../../../config/rbac/dashboard_role.yaml")],
    ),
];
/// Kinds without a namespace.
const WITHOUT_NAMESPACE: [&str; 4] = ["namespaces", "nodeagents", "nodes", "priorityclasses"];

/// A right that a request lacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
}

impl<'a> Right<'a> {
    /// Parses the API server's message of a refusal by RBAC.
    fn parse(message: &'a str) -> Option<Self> {
        let (_, from_verb) = message.split_once(" cannot ")?;
        let (verb, from_resource) = from_verb.split_once(" resource \"")?;
        let (resource, from_group) = from_resource.split_once("\" in API group \"")?;
        let (group, _) = from_group.split_once('"')?;
        Some(Self {
            verb,
            group,
            resource,
        })
    }

    fn is_granted_by(self, roles: &[&str]) -> bool {
        let of = |all: Option<&Vec<String>>, one: &str| {
            all.is_some_and(|all| all.iter().any(|each| each == one))
        };
        let roles = roles
            .iter()
            .filter_map(|role| serde_saphyr::from_str::<ClusterRole>(role).ok());
        roles
            .flat_map(|role| role.rules.unwrap_or_default())
            .any(|rule| {
                of(rule.api_groups.as_ref(), self.group)
                    && of(rule.resources.as_ref(), self.resource)
                    && of(Some(&rule.verbs), self.verb)
            })
    }
}

/// The role for the dashboard that grants a right, which is missing according to the API server's
/// message; and its namespace, if it is bound there.
pub fn for_dashboard(message: &str) -> (&'static str, Option<&str>) {
    let place = message.split_once("in the namespace \"");
    let namespace = place.and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    match Right::parse(message) {
        Some(right) if namespace.is_some() && right.is_granted_by(OF_NAMESPACE.1) => {
            (OF_NAMESPACE.0, namespace)
        }
        _ => (DASHBOARD, None),
    }
}

/// Remedy for a right that is missing according to the API server's message. Names only roles that
/// grant the right.
pub fn remedy(message: &str) -> String {
    let Some(right) = Right::parse(message) else {
        return "ask an administrator for this right".to_owned();
    };
    let everywhere = message.contains("at the cluster scope");
    if !everywhere && right.is_granted_by(OF_NAMESPACE.1) {
        let role = OF_NAMESPACE.0;
        return format!("ask an administrator of the namespace to bind you ClusterRole {role}");
    }
    let granting = OF_CLUSTER
        .iter()
        .filter(|(_, role)| right.is_granted_by(role));
    let names: Vec<&str> = granting.map(|(name, _)| *name).collect();
    let bind = match names.as_slice() {
        [] => "ask an administrator for this right".to_owned(),
        names => format!(
            "ask an administrator to bind you ClusterRole {}",
            names.join(" or ")
        ),
    };
    if everywhere && !WITHOUT_NAMESPACE.contains(&right.resource) {
        format!("-n NAMESPACE limits the command to one namespace, or {bind}")
    } else {
        bind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_the_roles_that_grant_the_right() {
        let whatif = "bind you ClusterRole lockstep-whatif or lockstep-oncall";
        for (verb, group, resource, place, expected) in [
            (
                "get",
                "",
                "pods/log",
                "in the namespace \"ml\"",
                "ask an administrator of the namespace to bind you ClusterRole lockstep-batch-user",
            ),
            (
                "list",
                "policy",
                "poddisruptionbudgets",
                "in the namespace \"ml\"",
                whatif,
            ),
            (
                "list",
                "policy",
                "poddisruptionbudgets",
                "at the cluster scope",
                whatif,
            ),
            (
                "list",
                "",
                "pods",
                "at the cluster scope",
                "-n NAMESPACE limits the command to one namespace, or ask an administrator",
            ),
            (
                "list",
                "",
                "nodes",
                "at the cluster scope",
                "ask an administrator to bind you ClusterRole lockstep-whatif or lockstep-oncall",
            ),
            (
                "list",
                "training.lockstep.dev",
                "nodeagents",
                "at the cluster scope",
                "ask an administrator to bind you ClusterRole lockstep-oncall",
            ),
            (
                "delete",
                "",
                "nodes",
                "at the cluster scope",
                "ask an administrator for this right",
            ),
        ] {
            let message = format!(
                "{resource} is forbidden: User \"jo\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
            );
            let remedy = remedy(&message);
            assert!(remedy.contains(expected), "{message}: {remedy}");
        }
    }
}
