//! Which container of a pod trains.

use k8s_openapi::api::core::v1::PodTemplateSpec;

use crate::pods::DEFAULT_CONTAINER;

/// Name of the training container: the one that the annotation names, else the first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
