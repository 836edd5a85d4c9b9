//! The whitelist of fields. `fields.txt` has them; what it does not name stays out of an archive.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::content::{Content, NameKind, TRUSTED};

const TEXT: &str = include_str!("fields.txt");
/// Reasons of events of a kubelet without output of programs.
const OF_KUBELET: [&str; 7] = [
    "Created",
    "Evicted",
    "Killing",
    "NodeNotReady",
    "Pulled",
    "Pulling",
    "Started",
];

/// The fields of an object, or of a part of it.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Content of a scalar, or of a list of scalars.
    scalar: Option<Content>,
    /// Kind of names that the keys are.
    keys: Option<NameKind>,
    /// By name; `*` is any other name.
    parts: BTreeMap<String, Fields>,
}

/// The fields of all kinds, by plural name. With logs, output of programs is one of them.
pub fn fields(logs: bool) -> BTreeMap<String, Fields> {
    let mut all: BTreeMap<String, Fields> = BTreeMap::new();
    let lines = TEXT.lines().filter(|l| !l.starts_with('#'));
    for (place, words) in lines.filter_map(|l| l.split_once(':')) {
        let (kinds, path) = place.split_once(' ').unwrap_or((place, ""));
        let mut added = Fields::default();
        for word in words.split_whitespace() {
            match all.get(word) {
                Some(part) => added.merge(part),
                None => added.add(word, logs),
            }
        }
        // Without output of programs, lists of it would have empty objects.
        if added.parts.is_empty() && !words.is_empty() {
            continue;
        }
        for kind in kinds.split('|') {
            all.entry(kind.to_owned())
                .or_default()
                .put(path.trim(), &added);
        }
    }
    all.retain(|kind, _| !kind.starts_with('@'));
    all
}

impl Fields {
    /// A word with an unknown content adds nothing.
    fn add(&mut self, word: &str, logs: bool) {
        let (name, content) = word.split_once('=').unwrap_or((word, ""));
        let Some(content) = Content::parse(content, logs) else {
            return;
        };
        if let (Some(name), Content::Name(kind)) = (name.strip_prefix('#'), content) {
            self.keys = Some(kind);
            self.parts.entry(name.to_owned()).or_default().scalar = Some(Content::Plain);
        } else {
            let part = self.parts.entry(name.to_owned()).or_default();
            part.scalar = Some(content);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.scalar = other.scalar.or(self.scalar);
        self.keys = other.keys.or(self.keys);
        for (name, part) in &other.parts {
            self.parts.entry(name.clone()).or_default().merge(part);
        }
    }

    fn put(&mut self, path: &str, added: &Self) {
        if path.is_empty() {
            return self.merge(added);
        }
        let (names, rest) = path.split_once('.').unwrap_or((path, ""));
        for name in names.split('|') {
            self.parts
                .entry(name.to_owned())
                .or_default()
                .put(rest, added);
        }
    }

    fn part(&self, name: &str) -> Option<&Self> {
        self.parts.get(name).or_else(|| self.parts.get("*"))
    }

    /// The listed part of the value of a field. Calls `dropped` with every other field and its name.
    pub fn copy(
        &self,
        field: &str,
        value: Value,
        dropped: &mut impl FnMut(&str, &Value),
    ) -> Option<Value> {
        match value {
            Value::Array(all) => {
                let kept = all.into_iter().map(|v| self.copy(field, v, dropped));
                Some(kept.flatten().collect())
            }
            Value::Object(_) if self.scalar.is_some() => None,
            Value::Object(all) => {
                let mut kept = Map::new();
                let trusted = is_trusted(&all);
                for (name, value) in all {
                    let part = self.part(&name);
                    let part = part.filter(|p| trusted || p.scalar != Some(Content::Checked));
                    // Annotations are dropped as such, whatever their keys are.
                    let within = if field == "annotations" { field } else { &name };
                    match part {
                        None => dropped(within, &value),
                        Some(part) => {
                            let copied = part.copy(within, value, dropped);
                            kept.extend(copied.map(|copied| (name.clone(), copied)));
                        }
                    }
                }
                Some(Value::Object(kept))
            }
            scalar => self.scalar.map(|_| scalar),
        }
    }

    /// Calls `visitor` with each string of a copied value, and with keys that are names.
    pub fn visit(&self, value: &mut Value, visitor: &mut impl FnMut(Content, &mut String)) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|v| self.visit(v, visitor)),
            Value::Object(all) => {
                for (mut name, mut value) in std::mem::take(all) {
                    if let Some(part) = self.part(&name) {
                        part.visit(&mut value, visitor);
                    }
                    if let Some(kind) = self.keys {
                        visitor(Content::Name(kind), &mut name);
                    }
                    all.insert(name, value);
                }
            }
            Value::String(text) => {
                if let Some(content) = self.scalar {
                    visitor(content, text);
                }
            }
            _ => {}
        }
    }
}

/// True for a condition or an event whose message has no output of programs.
fn is_trusted(object: &Map<String, Value>) -> bool {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let source = object.get("source").and_then(|s| s.get("component"));
    let component = match text(source) {
        none if none.is_empty() => text(object.get("reportingComponent")),
        component => component,
    };
    let reason = text(object.get("reason"));
    text(object.get("type")) == "PodScheduled"
        || TRUSTED.contains(&component.as_str())
        || (component == "kubelet" && OF_KUBELET.contains(&reason.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_word_of_the_whitelist_is_understood() {
        for line in TEXT.lines().filter(|l| !l.starts_with('#')) {
            let Some((_, words)) = line.split_once(':') else {
                assert!(line.is_empty(), "{line}");
                continue;
            };
            for word in words.split_whitespace() {
                let content = word.split_once('=').map_or("", |(_, content)| content);
                assert!(Content::parse(content, true).is_some(), "{word}");
            }
        }
        assert!(!fields(true).keys().any(|kind| kind.starts_with('@')));
    }

    #[test]
    fn what_the_whitelist_does_not_name_is_dropped_and_reported() {
        let pod = json!({"metadata": {"name": "p", "news": "s1", "annotations": {"a": "s2"}},
            "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "s3"}], "resources":
                {"limits": {"cpu": "1", "odd": {"deep": "s4"}}}}], "nodeName": {"odd": "s5"}},
            "status": {"phase": ["Running", {"odd": "s6"}]}});
        let mut dropped = Vec::new();
        let kept =
            fields(false)["pods"].copy("", pod, &mut |name, _| dropped.push(name.to_owned()));
        let expected = json!({"metadata": {"name": "p", "annotations": {}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]},
            "status": {"phase": ["Running"]}});
        assert_eq!(kept, Some(expected));
        dropped.sort();
        assert_eq!(dropped, ["annotations", "env", "news"]);
    }
}
