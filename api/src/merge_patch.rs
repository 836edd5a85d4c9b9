//! JSON merge patches (RFC 7386).
//!
//! A patch names only changed fields, so fields of a newer API version stay. Removed fields are set
//! to null, which a serialized struct cannot express: fields that are null count as absent. Lists are
//! replaced whole.

use serde_json::{Map, Value};

/// The patch that turns one value into another. `None` if both are equal.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = Map::new();
            for (key, desired) in new {
                match old.get(key) {
                    Some(present) => {
                        if let Some(change) = difference(present, desired) {
                            patch.insert(key.clone(), change);
                        }
                    }
                    None if desired.is_null() => {}
                    None => {
                        patch.insert(key.clone(), desired.clone());
                    }
                }
            }
            let gone =
                |(key, value): &(&String, &Value)| !value.is_null() && !new.contains_key(*key);
            for (key, _) in old.iter().filter(gone) {
                patch.insert(key.clone(), Value::Null);
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (old, new) => (old != new).then(|| new.clone()),
    }
}

/// RFC 7386, section 2.
pub fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    let mut fields = match target.take() {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(&key);
        } else {
            apply(fields.entry(key).or_insert(Value::Null), value);
        }
    }
    *target = Value::Object(fields);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn objects() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..5i64).prop_map(Value::from)
        ];
        let tree = leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-d]", tree, 0..4)
            .prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    /// Without fields that are null.
    fn bare(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(_, v)| !v.is_null());
                Value::Object(kept.map(|(k, v)| (k.clone(), bare(v))).collect())
            }
            other => other.clone(),
        }
    }

    fn with_nulls() -> impl Strategy<Value = Value> {
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
        fn fields_that_are_null_count_as_absent(from in with_nulls(), to in with_nulls()) {
            let mut patched = from.clone();
            if let Some(patch) = difference(&from, &to) {
                apply(&mut patched, patch);
            }
            prop_assert_eq!(bare(&patched), bare(&to));
        }

        #[test]
        fn the_patch_turns_the_old_object_into_the_new_one(old in objects(), new in objects()) {
            let mut patched = old.clone();
            if let Some(patch) = difference(&old, &new) {
                apply(&mut patched, patch);
            }
            prop_assert_eq!(patched, new);
        }
    }

    #[test]
    fn equal_objects_need_no_patch_and_a_lost_field_is_nulled() {
        assert_eq!(difference(&json!({"a": 1}), &json!({"a": 1})), None);
        assert_eq!(
            difference(&json!({"a": {"b": 1, "c": 2}}), &json!({"a": {"b": 1}})),
            Some(json!({"a": {"c": null}}))
        );
    }
    #[test]
    fn a_patch_has_only_what_has_changed() {
        let from = json!({"rows": {"a": {"n": 1, "m": 2}, "b": {"n": 1}}, "x": null});
        let to = json!({"rows": {"a": {"n": 3, "m": 2}}});
        let patch = json!({"rows": {"a": {"n": 3}, "b": null}});
        assert_eq!(difference(&from, &to), Some(patch));
        assert_eq!(difference(&from, &from), None);
    }
}
