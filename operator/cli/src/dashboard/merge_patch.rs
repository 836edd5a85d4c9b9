//! JSON merge patches (RFC 7386).

use serde_json::{Map, Value};

/// The patch that turns one value into another; `None` if they are equal. Fields that are `null`
/// count as absent, and arrays are replaced whole.
pub fn between(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for (key, value) in to {
        match from.get(key) {
            Some(before) => {
                if let Some(change) = between(before, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None if !value.is_null() => {
                patch.insert(key.clone(), value.clone());
            }
            None => {}
        }
    }
    let gone = from
        .iter()
        .filter(|(key, before)| !before.is_null() && !to.contains_key(*key));
    patch.extend(gone.map(|(key, _)| (key.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// What a reader does with a patch, as in RFC 7386.
    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let fields = target.as_object_mut().unwrap();
        for (key, value) in patch {
            if value.is_null() {
                fields.remove(key);
            } else {
                apply(fields.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }

    /// Without fields that are `null`.
    fn bare(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(_, v)| !v.is_null());
                Value::Object(kept.map(|(k, v)| (k.clone(), bare(v))).collect())
            }
            other => other.clone(),
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            (0..3).prop_map(|n| json!(n)),
            Just(json!([1, {"a": 2}])),
        ];
        leaf.prop_recursive(3, 24, 3, |inner| {
            prop::collection::btree_map("[abc]", inner, 0..4).prop_map(|fields| json!(fields))
        })
    }

    proptest! {
        #[test]
        fn a_patch_turns_the_first_value_into_the_second(from in values(), to in values()) {
            let mut patched = from.clone();
            if let Some(patch) = between(&from, &to) {
                apply(&mut patched, &patch);
            }
            prop_assert_eq!(bare(&patched), bare(&to));
        }
    }

    #[test]
    fn a_patch_has_only_what_has_changed() {
        let from = json!({"rows": {"a": {"n": 1, "m": 2}, "b": {"n": 1}}, "x": null});
        let to = json!({"rows": {"a": {"n": 3, "m": 2}}});
        let patch = json!({"rows": {"a": {"n": 3}, "b": null}});
        assert_eq!(between(&from, &to), Some(patch));
        assert_eq!(between(&from, &from), None);
    }
}
