//! The checks of the API server: types, bounds, list keys, unknown fields and rules.

use std::collections::BTreeSet;

use kube::CustomResourceExt;
use kube::core::cel::{CompiledSchema, compile_schema, validate_compiled};
use lockstep_api::TrainingWorkload;
use serde_json::Value;
use thiserror::Error;

use crate::field::{Path, PathStep};

thread_local! {
    static SCHEMA: Value = schema();
    /// Compiled once, because a file may have many jobs.
    static RULES: CompiledSchema = SCHEMA.with(compile_schema);
}

/// Why the API server would refuse a workload.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error("the workload would be refused: {0}")]
    Unreadable(serde_path_to_error::Error<serde_json::Error>),
    #[error("the workload would be refused: {}", .0.join("; "))]
    Refused(Vec<String>),
    #[error(transparent)]
    Unwritable(serde_json::Error),
}

/// Schema of the workload, with its rules.
fn schema() -> Value {
    let versions = TrainingWorkload::crd().spec.versions.into_iter();
    let mut schemas = versions.filter_map(|v| v.schema?.open_api_v3_schema);
    serde_json::to_value(schemas.next()).unwrap_or_default()
}

/// Reads a workload, with the checks of the API server. Also returns the fields that the API does
/// not have.
pub fn check(object: &Value) -> Result<(TrainingWorkload, Vec<Path>), CheckError> {
    let workload: TrainingWorkload =
        serde_path_to_error::deserialize(object).map_err(CheckError::Unreadable)?;
    let complete = serde_json::to_value(&workload).map_err(CheckError::Unwritable)?;
    let mut findings = Findings::default();
    SCHEMA.with(|schema| {
        let spec = Path::default().then(PathStep::Key("spec".to_owned()));
        findings.visit(&schema["properties"]["spec"], &object["spec"], &spec);
    });
    if let Err(errors) = RULES.with(|rules| validate_compiled(rules, &complete, None)) {
        findings
            .errors
            .extend(errors.iter().map(ToString::to_string));
    }
    if !findings.errors.is_empty() {
        return Err(CheckError::Refused(findings.errors));
    }
    Ok((workload, findings.unknown))
}

#[derive(Default)]
struct Findings {
    errors: Vec<String>,
    unknown: Vec<Path>,
}

impl Findings {
    fn visit(&mut self, schema: &Value, value: &Value, path: &Path) {
        match value {
            Value::Object(fields) => {
                let any = schema.get("additionalProperties").filter(|s| s.is_object());
                let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
                for (key, value) in fields {
                    let below = path.then(PathStep::Key(key.clone()));
                    match schema["properties"].get(key).or(any) {
                        Some(schema) => self.visit(schema, value, &below),
                        None if open => {}
                        None => self.unknown.push(below),
                    }
                }
                self.bound(schema, "Properties", fields.len(), path);
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    let below = path.then(PathStep::Index(n));
                    self.visit(&schema["items"], item, &below);
                }
                self.bound(schema, "Items", items.len(), path);
                self.repeated(schema, items, path);
            }
            Value::String(text) => self.bound(schema, "Length", text.chars().count(), path),
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or_default();
                let least = schema["minimum"].as_f64().filter(|least| number < *least);
                let most = schema["maximum"].as_f64().filter(|most| number > *most);
                if let Some(least) = least {
                    self.errors
                        .push(format!("{path}: {number} is below {least}"));
                }
                if let Some(most) = most {
                    self.errors
                        .push(format!("{path}: {number} is above {most}"));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn bound(&mut self, schema: &Value, what: &str, size: usize, path: &Path) {
        let limit = |side: &str| schema[format!("{side}{what}")].as_u64();
        let size = size as u64;
        let what = what.to_lowercase();
        if let Some(least) = limit("min").filter(|least| size < *least) {
            let text = format!("{path}: {what} {size} is below {least}");
            self.errors.push(text);
        }
        if let Some(most) = limit("max").filter(|most| size > *most) {
            self.errors
                .push(format!("{path}: {what} {size} is above {most}"));
        }
    }

    /// Items of a map or set with the same key.
    fn repeated(&mut self, schema: &Value, items: &[Value], path: &Path) {
        let keys = schema["x-kubernetes-list-map-keys"].as_array();
        if keys.is_none() && schema["x-kubernetes-list-type"] != "set" {
            return;
        }
        let key = |item: &Value| match keys {
            Some(keys) => {
                let keys = keys.iter().filter_map(Value::as_str);
                let words = keys.map(|key| format!("{key} {}", item[key]));
                words.collect::<Vec<_>>().join(", ")
            }
            None => item.to_string(),
        };
        let mut keys_so_far = BTreeSet::new();
        for item in items {
            let key = key(item);
            if !keys_so_far.insert(key.clone()) {
                self.errors.push(format!("{path}: {key} occurs twice"));
            }
        }
    }
}
