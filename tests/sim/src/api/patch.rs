//! Patches: merge (RFC 7386), and the part of strategic merge that the product uses: lists of
//! objects with a key.

use serde_json::{Value, json};

/// Lists that are merged by a key instead of replaced, by the name of their field.
const KEYED: [(&str, &str); 2] = [("conditions", "type"), ("schedulingGates", "name")];

/// Applies a merge patch.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(fields) = target.as_object_mut() else {
        return;
    };
    for (key, value) in changes {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Applies a strategic merge patch.
pub fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(fields) = target.as_object_mut() else {
        return;
    };
    for (key, value) in changes {
        let by = KEYED.iter().find(|(field, _)| field == key);
        match (value, by) {
            (Value::Null, _) => {
                fields.remove(key);
            }
            (Value::Array(items), Some((_, by))) => {
                let list = fields.entry(key).or_insert_with(|| json!([]));
                merge_list(list, items, by);
                if list.as_array().is_some_and(Vec::is_empty) {
                    fields.remove(key);
                }
            }
            _ => strategic(fields.entry(key).or_insert(Value::Null), value),
        }
    }
}

fn merge_list(list: &mut Value, items: &[Value], by: &str) {
    let Some(list) = list.as_array_mut() else {
        return;
    };
    for item in items {
        let at = list.iter().position(|old| old[by] == item[by]);
        match (at, item["$patch"].as_str()) {
            (Some(at), Some("delete")) => {
                list.remove(at);
            }
            (None, Some("delete")) => {}
            (Some(at), _) => strategic(&mut list[at], item),
            (None, _) => {
                let mut new = json!({});
                strategic(&mut new, item);
                list.push(new);
            }
        }
    }
}
