//! The pod template of a group. It keeps exactly what users write; its schema is small enough for
//! client-side apply.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// A `PodTemplateSpec` that keeps only labels and annotations of its metadata.
///
/// It differs from the core type in two ways. First, quantities may be numbers (`nvidia.com/gpu:
/// 8`), which API servers accept for core types. The core type refuses them, and one such object
/// would break a watch. Second, the schema has no descriptions below this field. With them the CRD
/// would exceed the annotation limit of client-side apply (262,144 bytes).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodTemplate(pub PodTemplateSpec);

/// Default grace period of pods, in seconds.
pub const DEFAULT_GRACE: i64 = 30;

/// Grace period of the pods of a template, in seconds.
pub fn grace_seconds(template: &PodTemplateSpec) -> i64 {
    let spec = template.spec.as_ref();
    spec.and_then(|s| s.termination_grace_period_seconds)
        .unwrap_or(DEFAULT_GRACE)
}

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        quantities_as_strings(&mut value);
        serde_json::from_value(value)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

/// Keys with maps of quantities, and keys with one quantity, anywhere in a pod template.
const QUANTITY_MAPS: [&str; 3] = ["limits", "requests", "overhead"];
const QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

fn quantities_as_strings(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, v) in fields.iter_mut() {
                if QUANTITIES.contains(&key.as_str()) {
                    as_text(v);
                } else if let (true, Value::Object(map)) =
                    (QUANTITY_MAPS.contains(&key.as_str()), &mut *v)
                {
                    map.values_mut().for_each(as_text);
                } else {
                    quantities_as_strings(v);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_strings),
        _ => {}
    }
}

/// Numbers become quantities. Other values that the schema allows (`memory: true`) become invalid
/// text. So the object stays readable, and the template is reported as invalid.
fn as_text(value: &mut Value) {
    if !value.is_string() && !value.is_null() {
        *value = Value::String(value.to_string());
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let settings = SchemaSettings::openapi3().with(|s| s.inline_subschemas = true);
        let full = settings
            .into_generator()
            .into_root_schema_for::<PodTemplateSpec>();
        let mut value = full.to_value();
        simplify(&mut value);
        if let Value::Object(root) = &mut value {
            root.remove("$schema");
            root.remove("title");
            root.insert("required".into(), json!(["spec"]));
            if let Some(Value::Object(properties)) = root.get_mut("properties") {
                properties.insert("metadata".into(), metadata_schema());
            }
            bound_containers(root);
        }
        Schema::try_from(value).unwrap_or_default()
    }
}

/// Most containers per pod. CEL rules over containers need a bound for their cost.
const MOST_CONTAINERS: u64 = 64;

/// Limits the number of containers, and their names as the core API does.
fn bound_containers(template: &mut Map<String, Value>) {
    let template = template.get_mut("properties");
    let containers = template.and_then(|t| t.pointer_mut("/spec/properties/containers"));
    let Some(Value::Object(containers)) = containers else {
        return;
    };
    containers.insert("maxItems".into(), json!(MOST_CONTAINERS));
    let items = containers.get_mut("items");
    let name = items.and_then(|i| i.pointer_mut("/properties/name"));
    if let Some(Value::Object(name)) = name {
        name.insert("maxLength".into(), json!(63));
    }
}

/// Only labels and annotations: the operator sets name, namespace and owners of the pods.
fn metadata_schema() -> Value {
    let strings = |max: u64| json!({"type": "object", "maxProperties": max, "additionalProperties": {"type": "string", "maxLength": 262_144}});
    json!({"type": "object", "properties": {"labels": strings(64), "annotations": strings(64)}})
}

/// Removes descriptions, and allows numbers and valid strings for quantities.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if is_quantity(fields) {
                *fields = quantity_schema();
                return;
            }
            // A property may be named "description"; only the keyword has a string value.
            if fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            for (key, v) in fields.iter_mut() {
                if QUANTITIES.contains(&key.as_str()) && v.is_object() {
                    // An optional quantity has the description of its field.
                    let mut schema = quantity_schema();
                    schema.insert("nullable".into(), json!(true));
                    *v = Value::Object(schema);
                } else {
                    simplify(v);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

fn is_quantity(schema: &Map<String, Value>) -> bool {
    let description = schema.get("description").and_then(Value::as_str);
    description
        .is_some_and(|d| d.starts_with("Quantity is a fixed-point representation of a number."))
}

/// Schema of a quantity as in the core API: numbers, and strings of this form. Structural schemas
/// have no such type (`x-kubernetes-int-or-string` refuses `cpu: 0.5`), so the schema accepts any
/// type.
fn quantity_schema() -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    // The pattern applies only to strings.
    out.insert(
        "pattern".into(),
        json!(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_count_without_quotes_is_read_as_its_string() {
        let t: PodTemplate = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": 0.5, "memory": "1Gi"}}}]}}))
        .unwrap();
        let limits = t.0.spec.unwrap().containers[0]
            .resources
            .clone()
            .unwrap()
            .limits
            .unwrap();
        assert_eq!(
            (
                limits["nvidia.com/gpu"].0.as_str(),
                limits["cpu"].0.as_str()
            ),
            ("8", "0.5")
        );
    }

    #[test]
    fn what_is_neither_number_nor_string_can_be_read_and_is_no_quantity() {
        let t: PodTemplate = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"cpu": true, "memory": [1], "nvidia.com/gpu": {}}}}]}}))
        .unwrap();
        let limits = t.0.spec.unwrap().containers[0]
            .resources
            .clone()
            .unwrap()
            .limits
            .unwrap();
        assert_eq!(
            limits.values().map(|q| q.0.as_str()).collect::<Vec<_>>(),
            ["true", "[1]", "{}"]
        );
    }

    #[test]
    fn every_quantity_of_a_template_has_the_pattern_and_ports_have_not() {
        fn find<'a>(at: &'a Value, path: &str, out: &mut Vec<(String, &'a Value)>) {
            for (key, v) in at.as_object().into_iter().flatten() {
                let path = format!("{path}/{key}");
                if ["divisor", "sizeLimit", "additionalProperties", "port"].contains(&key.as_str())
                {
                    out.push((path.clone(), v));
                }
                find(v, &path, out);
            }
        }
        let mut schemas = Vec::new();
        let schema = PodTemplate::json_schema(&mut SchemaGenerator::default()).to_value();
        find(&schema, "", &mut schemas);
        let (mut quantities, mut ports) = (0, 0);
        for (path, schema) in &schemas {
            let patterned = schema.get("pattern").is_some();
            let in_map = QUANTITY_MAPS
                .iter()
                .any(|m| path.ends_with(&format!("/{m}/additionalProperties")));
            let single = QUANTITIES.iter().any(|q| path.ends_with(&format!("/{q}")));
            assert_eq!(patterned, in_map || single, "{path}: {schema}");
            quantities += usize::from(patterned);
            ports += usize::from(path.ends_with("/port"));
        }
        assert!(
            quantities > 10 && ports > 10,
            "{quantities} quantities, {ports} ports"
        );
    }
}
