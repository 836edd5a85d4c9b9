//! YAML in and out. Notes become comments above the lines that they are about.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use super::{Document, Note};

/// Keys that come before the others of an object, in this order.
const FIRST: [&str; 9] = [
    "apiVersion",
    "kind",
    "name",
    "replicas",
    "size",
    "dependsOn",
    "image",
    "command",
    "args",
];

/// Reads the documents of a file. Errors name the line.
pub fn read(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).context("not valid YAML")
}

/// Writes documents with their comments.
pub fn write(documents: &[Document]) -> Result<String> {
    let mut out = Vec::new();
    for document in documents {
        let mut page = Page::default();
        match document {
            Document::Kept(object) => page.value(object, "", 0, false)?,
            Document::Workload { object, notes } => {
                page.notes = placed(object, notes);
                page.value(object, "", 0, false)?;
            }
        }
        out.push(page.text);
    }
    Ok(out.join("---\n"))
}

/// Moves each note to the nearest part that exists.
fn placed(object: &Value, notes: &[Note]) -> Vec<Note> {
    let nearest = |note: &Note| {
        let mut at = note.at.as_str();
        while !at.is_empty() && object.pointer(at).is_none() {
            at = at.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        let at = if at.is_empty() { "/spec" } else { at };
        Note {
            at: at.to_owned(),
            text: note.text.clone(),
        }
    };
    notes.iter().map(nearest).collect()
}

#[derive(Default)]
struct Page {
    text: String,
    notes: Vec<Note>,
}

impl Page {
    /// Writes the lines of a value. `inline`: the first line continues a line, after `- `.
    fn value(&mut self, value: &Value, at: &str, indent: usize, inline: bool) -> Result<()> {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (n, key) in ordered(fields).into_iter().enumerate() {
                    let below = format!("{at}/{key}");
                    if n > 0 || !inline {
                        self.comment(&below, indent);
                        self.pad(indent);
                    }
                    let written = serde_saphyr::to_string(key)?;
                    self.text.push_str(written.trim_end());
                    self.text.push(':');
                    self.field(&fields[key], &below, indent)?;
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (n, item) in items.iter().enumerate() {
                    let below = format!("{at}/{n}");
                    self.comment(&below, indent);
                    self.pad(indent);
                    self.text.push_str("- ");
                    if let Some(text) = several_lines(item) {
                        self.block(text, indent + 2)?;
                    } else if leaf(item) {
                        self.leaf(item)?;
                    } else {
                        self.value(item, &below, indent + 2, true)?;
                    }
                }
            }
            other => self.leaf(other)?,
        }
        Ok(())
    }

    fn field(&mut self, value: &Value, at: &str, indent: usize) -> Result<()> {
        if leaf(value) {
            self.text.push(' ');
            if let Some(text) = several_lines(value) {
                return self.block(text, indent + 2);
            }
            return self.leaf(value);
        }
        self.text.push('\n');
        let deeper = if value.is_array() { indent } else { indent + 2 };
        self.value(value, at, deeper, false)
    }

    /// A text of several lines, as it is.
    fn block(&mut self, text: &str, indent: usize) -> Result<()> {
        let plain = text.lines().next().is_some_and(|l| !l.starts_with(' '))
            && !text.contains(['\t', '\r'])
            && text.lines().all(|l| !l.ends_with(' '))
            && !text.ends_with("\n\n");
        if !plain {
            let written = serde_json::to_string(text)?;
            self.text.push_str(&written);
            self.text.push('\n');
            return Ok(());
        }
        self.text
            .push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
        for line in text.lines() {
            if !line.is_empty() {
                self.pad(indent);
            }
            self.text.push_str(line);
            self.text.push('\n');
        }
        Ok(())
    }

    /// A scalar, or a list of scalars in one line.
    fn leaf(&mut self, value: &Value) -> Result<()> {
        let written = match value {
            Value::Array(items) => {
                let items: Result<Vec<String>> = items.iter().map(scalar).collect();
                format!("[{}]", items?.join(", "))
            }
            other => scalar(other)?,
        };
        self.text.push_str(&written);
        self.text.push('\n');
        Ok(())
    }

    fn comment(&mut self, at: &str, indent: usize) {
        let here = |note: &&Note| note.at == at;
        let texts: Vec<String> = self
            .notes
            .iter()
            .filter(here)
            .map(|n| n.text.clone())
            .collect();
        for text in texts {
            let pad = " ".repeat(indent);
            let _ = writeln!(self.text, "{pad}# {text}");
        }
    }

    fn pad(&mut self, indent: usize) {
        self.text.push_str(&" ".repeat(indent));
    }
}

/// Values that are written on the line of their key.
fn leaf(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.iter().all(short),
        _ => true,
    }
}

fn several_lines(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| text.contains('\n'))
}

/// Scalars that may be in a list on one line.
fn short(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.contains('\n'),
        Value::Object(_) | Value::Array(_) => false,
        _ => true,
    }
}

fn scalar(value: &Value) -> Result<String> {
    let Value::String(text) = value else {
        return Ok(value.to_string());
    };
    if text.contains('"') && !text.contains(['\n', '\t', '\\', '\r']) {
        return Ok(format!("'{}'", text.replace('\'', "''")));
    }
    // In a list on one line these characters would end the scalar; JSON strings are YAML.
    if text.contains(['\n', ',', '[', ']', '{', '}', '#', '"', '\\', '\t']) {
        return Ok(serde_json::to_string(text)?);
    }
    Ok(serde_saphyr::to_string(text)?.trim_end().to_owned())
}

fn ordered(fields: &Map<String, Value>) -> Vec<&String> {
    let mut keys: Vec<&String> = fields.keys().collect();
    let rank = |key: &str| FIRST.iter().position(|f| *f == key).unwrap_or(FIRST.len());
    keys.sort_by_key(|key| (rank(key), key.as_str()));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn written_documents_read_back_equal() {
        let object = json!({
            "kind": "A", "metadata": {"name": "on", "annotations": {"a/b": "x: y # z", "empty": ""}},
            "spec": {"list": [1, "two, three", null, true], "nested": [[1, 2], {"b": {}, "a": []}],
                "script": "set -e\n\n  run\n", "cut": "a\nb", "odd": " a\n b", "text": "8", "n": 8, "tabs": "a\tb\nc",
                "args": ["-c", "a\nb", "{\"a\": [1]}", "it's \"b\"", "x:y", "-", "1e3", "~"]},
        });
        let written = write(&[
            Document::Kept(object.clone()),
            Document::Kept(object.clone()),
        ])
        .unwrap();
        assert_eq!(
            read(&written).unwrap(),
            [object.clone(), object],
            "{written}"
        );
    }

    #[test]
    fn a_comment_is_above_the_line_of_its_part_or_of_the_nearest_part() {
        let object = json!({"spec": {"groups": [{"name": "a", "size": 2}], "suspend": true}});
        let note = |at: &str, text: &str| Note {
            at: at.into(),
            text: text.into(),
        };
        let notes = vec![
            note("/spec/groups/0", "first group"),
            note("/spec/suspend", "held"),
            note("/spec/network/port", "no port"),
            note("/metadata", "elsewhere"),
        ];
        let written = write(&[Document::Workload { object, notes }]).unwrap();
        let expected = "# no port\n# elsewhere\nspec:\n  groups:\n  # first group\n  - name: a\n    size: 2\n  # held\n  suspend: true\n";
        assert_eq!(written, expected);
    }

    #[test]
    fn the_error_of_bad_yaml_names_its_line() {
        let error = format!("{:#}", read("a: 1\nb: [\n").unwrap_err());
        assert!(error.contains("line "), "{error}");
    }
}
