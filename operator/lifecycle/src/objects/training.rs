use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use lockstep_api::workload::FailureAction;

use lockstep_api::member_pod::DEFAULT_CONTAINER;

/// The container that the annotation names, else the first.
pub(crate) fn training_container(template: &PodTemplateSpec) -> Option<&str> {
    let containers = &template.spec.as_ref()?.containers;
    let named = template
        .metadata
        .as_ref()
        .and_then(|m| m.annotations.as_ref()?.get(DEFAULT_CONTAINER));
    let training = containers
        .iter()
        .find(|c| named == Some(&c.name))
        .or(containers.first())?;
    Some(&training.name)
}

/// True without init containers and sidecars: a restart of the container restarts the pod.
pub(crate) fn has_one_container(spec: &PodSpec) -> bool {
    spec.containers.len() == 1 && spec.init_containers.iter().flatten().next().is_none()
}

/// Action of the user's own restart rules, which the kubelet evaluates first.
pub(crate) fn restart_by_rule(
    template: &PodTemplateSpec,
    container: &str,
    code: i32,
) -> Option<FailureAction> {
    let spec = template.spec.as_ref()?;
    let inits = spec.init_containers.iter().flatten();
    let rules = inits
        .chain(&spec.containers)
        .find(|c| c.name == container)?;
    let matching = rules.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let named = codes.values.iter().flatten().any(|v| *v == code);
            match codes.operator.as_str() {
                "In" => named,
                "NotIn" => !named,
                _ => false,
            }
        })
    })?;
    match matching.action.as_str() {
        "Restart" => Some(FailureAction::RestartContainer),
        "RestartAllContainers" => Some(FailureAction::RestartPod),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_of_the_users_rules_that_matches_decides() {
        let t: PodTemplateSpec = serde_json::from_value(
            json!({"spec": {"containers": [{"name": "a", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42, 0]}},
                {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 1]}}]}]}}),
        )
        .unwrap();
        let by = |code| restart_by_rule(&t, "a", code);
        assert_eq!(by(42), Some(FailureAction::RestartContainer));
        assert_eq!(by(0), Some(FailureAction::RestartContainer));
        assert_eq!(by(7), Some(FailureAction::RestartPod));
        assert_eq!(by(1), None);
    }

    #[test]
    fn the_training_container_is_the_annotated_one_else_the_first() {
        let t: PodTemplateSpec = serde_json::from_value(
            json!({"metadata": {"annotations": {DEFAULT_CONTAINER: "b"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
        )
        .unwrap();
        assert_eq!(training_container(&t), Some("b"));
        let t: PodTemplateSpec = serde_json::from_value(
            json!({"metadata": {"annotations": {DEFAULT_CONTAINER: "zzz"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
        )
        .unwrap();
        assert_eq!(training_container(&t), Some("a"));
    }
}
