//! The events for one reader: whole documents at first, then what has changed in them.
//!
//! A reader has one version of each document, and nothing is queued for it: a slow reader skips the
//! versions between.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::merge_patch::difference;
use serde_json::{Value, json};

/// Bytes of a patch above which the whole document may be shorter.
const LARGE: usize = 64 * 1024;

#[derive(Debug, Default)]
pub struct DocumentReader {
    has: BTreeMap<&'static str, Value>,
}

impl DocumentReader {
    /// True before the first events.
    pub fn is_new(&self) -> bool {
        self.has.is_empty()
    }

    /// Server-sent events with which the reader gets these documents.
    pub fn events(&mut self, documents: Vec<(&'static str, Value)>) -> String {
        let mut out = String::new();
        for (name, value) in documents {
            let event = match self.has.get(name) {
                None => Some(whole(name, &value)),
                Some(before) => difference(before, &value).map(|patch| {
                    let patch = event("patch", &json!({"name": name, "patch": patch}));
                    let whole = (patch.len() > LARGE).then(|| whole(name, &value));
                    whole.filter(|w| w.len() < patch.len()).unwrap_or(patch)
                }),
            };
            if let Some(event) = event {
                out.push_str(&event);
                self.has.insert(name, value);
            }
        }
        out
    }
}

fn whole(name: &str, value: &Value) -> String {
    event("document", &json!({"name": name, "value": value}))
}

/// The event that shows that the program still runs.
pub fn beat(now: DateTime<Utc>) -> String {
    event("beat", &json!({ "now": now }))
}

/// JSON text has no line breaks.
fn event(kind: &str, data: &Value) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_a_document_once_and_then_its_changes() {
        let mut reader = DocumentReader::default();
        let first = reader.events(vec![("map", json!({"n": 1, "m": 2}))]);
        assert_eq!(
            first,
            "event: document\ndata: {\"name\":\"map\",\"value\":{\"m\":2,\"n\":1}}\n\n"
        );
        assert_eq!(reader.events(vec![("map", json!({"n": 1, "m": 2}))]), "");
        assert_eq!(
            reader.events(vec![("map", json!({"n": 3, "m": 2}))]),
            "event: patch\ndata: {\"name\":\"map\",\"patch\":{\"n\":3}}\n\n"
        );
    }

    #[test]
    fn a_patch_that_is_longer_than_its_document_is_sent_as_the_document() {
        let mut reader = DocumentReader::default();
        let names = (0..9000).map(|n| (format!("node-{n}"), json!(1)));
        let many: serde_json::Map<String, Value> = names.collect();
        reader.events(vec![("map", Value::Object(many))]);
        let after = reader.events(vec![("map", json!({"only": 1}))]);
        assert!(after.starts_with("event: document\n"), "{after:.200}");
    }
}
