//! Manifests of the custom resource definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload, Workload};

/// Label of every object of an installation, including the definitions: OLM keeps them when it
/// removes the rest.
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "lockstep");

/// All definitions, in installation order.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        TrainingWorkload::crd(),
        RestartOrder::crd(),
        NodeAgent::crd(),
        Workload::crd(),
        PodGroup::crd(),
    ];
    for definition in &mut definitions {
        let labels = definition.metadata.labels.get_or_insert_default();
        labels.insert(LABEL.0.to_owned(), LABEL.1.to_owned());
        for version in &mut definition.spec.versions {
            if let Some(schema) = version
                .schema
                .as_mut()
                .and_then(|s| s.open_api_v3_schema.as_mut())
            {
                join_lines(schema);
                declare_name(schema);
            }
        }
    }
    definitions
}

/// Declares `metadata.name` if rules of the root have a field path, which must be declared.
fn declare_name(schema: &mut JSONSchemaProps) {
    let mut rules = schema.x_kubernetes_validations.iter().flatten();
    if rules.all(|rule| rule.field_path.is_none()) {
        return;
    }
    let of_type = |name: &str| JSONSchemaProps {
        type_: Some(name.to_owned()),
        ..JSONSchemaProps::default()
    };
    let metadata = JSONSchemaProps {
        properties: Some([("name".to_owned(), of_type("string"))].into()),
        ..of_type("object")
    };
    let properties = schema.properties.get_or_insert_default();
    properties.insert("metadata".to_owned(), metadata);
}

/// Joins the lines of each paragraph, because line breaks of doc comments are noise in `kubectl
/// explain`. Paragraphs and list items stay separate.
fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        let mut joined = String::new();
        for line in description.lines() {
            let starts = line.is_empty() || line.starts_with("- ");
            if !joined.is_empty() {
                joined.push(if starts || joined.ends_with('\n') {
                    '\n'
                } else {
                    ' '
                });
            }
            joined.push_str(line);
        }
        *description = joined;
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        join_lines(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => join_lines(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(join_lines),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        join_lines(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_rules_at_the_root_name_a_declared_field() {
        let definitions = all();
        let versions = definitions.iter().flat_map(|d| &d.spec.versions);
        for version in versions {
            let schema = version.schema.as_ref().unwrap();
            let root = schema.open_api_v3_schema.as_ref().unwrap();
            for rule in root.x_kubernetes_validations.iter().flatten() {
                let path = rule.field_path.as_deref().expect(&rule.rule);
                let mut at = root;
                for field in path.trim_start_matches('.').split('.') {
                    at = &at.properties.as_ref().unwrap()[field];
                }
            }
        }
    }
}
