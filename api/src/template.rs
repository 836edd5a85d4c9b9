//! The pod template of a group: what users write, kept exactly, with a schema small enough for client-side apply.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// A `PodTemplateSpec` of which only labels and annotations of the metadata are kept.
///
/// Two things differ from the plain type. Quantities may be numbers (`nvidia.com/gpu: 8`), as a core API server
/// accepts them; the plain type refuses them, and one such object would blind a watch. And the schema carries no
/// descriptions below this field: with them the CRD is larger than the annotation that client-side apply writes
/// (262,144 bytes).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodTemplate(pub PodTemplateSpec);

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        quantities_as_strings(&mut value);
        serde_json::from_value(value).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Keys whose values are maps of quantities, and keys that hold one quantity, anywhere in a pod template.
const QUANTITY_MAPS: [&str; 3] = ["limits", "requests", "overhead"];
const QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

fn quantities_as_strings(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, v) in fields.iter_mut() {
                if QUANTITIES.contains(&key.as_str()) {
                    number_as_string(v);
                } else if let (true, Value::Object(map)) = (QUANTITY_MAPS.contains(&key.as_str()), &mut *v) {
                    map.values_mut().for_each(number_as_string);
                } else {
                    quantities_as_strings(v);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_strings),
        _ => {}
    }
}

fn number_as_string(value: &mut Value) {
    if let Value::Number(n) = value {
        *value = Value::String(n.to_string());
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
        let full = settings.into_generator().into_root_schema_for::<PodTemplateSpec>();
        let mut value = full.to_value();
        simplify(&mut value);
        if let Value::Object(root) = &mut value {
            root.remove("$schema");
            root.remove("title");
            root.insert("required".into(), json!(["spec"]));
            if let Some(Value::Object(properties)) = root.get_mut("properties") {
                properties.insert("metadata".into(), metadata_schema());
            }
        }
        Schema::try_from(value).unwrap_or_default()
    }
}

/// Labels and annotations only: name, namespace and owners of the pods are ours to set.
fn metadata_schema() -> Value {
    let strings = |max: u64| json!({"type": "object", "maxProperties": max, "additionalProperties": {"type": "string", "maxLength": 262_144}});
    json!({"type": "object", "properties": {"labels": strings(64), "annotations": strings(64)}})
}

/// Descriptions out, quantities as int-or-string.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if is_quantity(fields) {
                *fields = quantity_schema();
                return;
            }
            // A property may itself be called "description": only the keyword holds a string.
            if fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            fields.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

fn is_quantity(schema: &Map<String, Value>) -> bool {
    schema.get("type").is_some_and(|t| t == "string")
        && schema
            .get("description")
            .and_then(Value::as_str)
            .is_some_and(|d| d.starts_with("Quantity is a fixed-point representation of a number."))
}

fn quantity_schema() -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("anyOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
    out.insert("x-kubernetes-int-or-string".into(), json!(true));
    // The pattern that controller-gen writes for resource.Quantity.
    out.insert(
        "pattern".into(),
        json!(r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"),
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
        let limits = t.0.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
        assert_eq!((limits["nvidia.com/gpu"].0.as_str(), limits["cpu"].0.as_str()), ("8", "0.5"));
    }
}
