//! The pod template of a group: what users write, kept exactly, with a schema small enough for
//! client-side apply.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// A `PodTemplateSpec` of which only labels and annotations of the metadata are kept.
///
/// Two things differ from the plain type. Quantities may be numbers (`nvidia.com/gpu: 8`), as a
/// core API server accepts them; the plain type refuses them, and one such object would blind a
/// watch. And the schema carries no descriptions below this field: with them the CRD is larger than
/// the annotation that client-side apply writes (262,144 bytes).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PodTemplate(pub PodTemplateSpec);

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        quantities_as_strings(&mut value);
        serde_json::from_value(value)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

/// Keys whose values are maps of quantities, and keys that hold one quantity, anywhere in a pod
/// template.
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

/// Numbers are quantities. What the schema lets through besides (`memory: true`) becomes text that
/// is none, so that the template is reported as wrong and the object can still be read.
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

/// Containers of a pod, at most: rules that look at each of them must have a cost.
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

/// Labels and annotations only: name, namespace and owners of the pods are ours to set.
fn metadata_schema() -> Value {
    let strings = |max: u64| json!({"type": "object", "maxProperties": max, "additionalProperties": {"type": "string", "maxLength": 262_144}});
    json!({"type": "object", "properties": {"labels": strings(64), "annotations": strings(64)}})
}

/// Descriptions out, quantities as numbers or strings that are one.
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

/// What a core API server takes for a quantity: numbers, and strings of this form. Structural
/// schemas have no type for that (`x-kubernetes-int-or-string` refuses `cpu: 0.5`), so any type is
/// let in.
fn quantity_schema() -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    // Binds strings only.
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
