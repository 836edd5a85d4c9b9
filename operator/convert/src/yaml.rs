//! YAML in and out. Notes become comments above the lines that they are about.
//!
//! The writer is our own, because `serde_saphyr::Commented` writes a comment between a key and its
//! value, or between `- ` and an item, and cannot stand for a key.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use serde_saphyr::{SerializerOptions, ser_options};
use thiserror::Error;

use crate::{Document, Note};

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

/// Longest list of strings on one line, in characters.
const WIDTH: usize = 80;

type Result<T> = std::result::Result<T, YamlError>;

/// Why documents cannot be read or written.
#[derive(Debug, Error)]
pub enum YamlError {
    #[error("not valid YAML: {0}")]
    Invalid(Box<serde_saphyr::Error>),
    #[error(transparent)]
    Unwritable(#[from] serde_saphyr::SerializeError),
    #[error(transparent)]
    Unquotable(#[from] serde_json::Error),
    #[error("the written YAML cannot be read: {0}")]
    Unreadable(Box<Self>),
    #[error("the written YAML differs from the objects; use -o json")]
    Different,
}

/// Reads the documents of a file. Errors name the line.
pub fn read(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).map_err(|e| YamlError::Invalid(Box::new(e)))
}

/// Writes documents with their comments, and reads the text back: a text that does not mean the
/// objects is an error.
pub fn write(documents: &[Document]) -> Result<String> {
    let text = text_of(documents)?;
    let objects = documents.iter().map(|document| &document.object);
    let read = read(&text).map_err(|e| YamlError::Unreadable(Box::new(e)))?;
    if read.iter().eq(objects) {
        Ok(text)
    } else {
        Err(YamlError::Different)
    }
}

fn text_of(documents: &[Document]) -> Result<String> {
    let mut out = Vec::new();
    for document in documents {
        let mut page = Page {
            notes: placed(&document.object, &document.notes),
            ..Page::default()
        };
        page.value(&document.object, "", 0, false)?;
        out.push(page.text);
    }
    Ok(out.join("---\n"))
}

/// Moves each note to the nearest part that exists and begins on a line of its own.
fn placed(object: &Value, notes: &[Note]) -> Vec<Note> {
    let parent = |at: &str| {
        at.rsplit_once('/')
            .map_or("", |(above, _)| above)
            .to_owned()
    };
    let in_list = |at: &str| object.pointer(&parent(at)).is_some_and(Value::is_array);
    let has_line = |at: &str| {
        let part = object.pointer(at);
        part.is_some_and(|part| part.is_object() || !in_list(at))
    };
    let nearest = |note: &Note| {
        let mut at = note.at.clone();
        while !at.is_empty() && !has_line(&at) {
            at = parent(&at);
        }
        if at.is_empty() {
            "/spec".clone_into(&mut at);
        }
        Note {
            at,
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
                    let below = field_at(at, key);
                    if n > 0 || !inline {
                        self.pad(indent);
                    }
                    self.comment(&below);
                    self.text.push_str(&string(key)?);
                    self.text.push(':');
                    self.field(&fields[key], &below, indent)?;
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (n, item) in items.iter().enumerate() {
                    let below = format!("{at}/{n}");
                    if n > 0 || !inline {
                        self.pad(indent);
                    }
                    self.comment(&below);
                    self.text.push_str("- ");
                    if let Some(text) = several_lines(item) {
                        self.block(text, indent + 2)?;
                    } else if let Some(text) = leaf(item, indent + 2)? {
                        self.line(&text);
                    } else {
                        self.value(item, &below, indent + 2, true)?;
                    }
                }
            }
            other => self.line(&leaf(other, indent)?.unwrap_or_default()),
        }
        Ok(())
    }

    fn field(&mut self, value: &Value, at: &str, indent: usize) -> Result<()> {
        if let Some(text) = several_lines(value) {
            self.text.push(' ');
            return self.block(text, indent + 2);
        }
        if let Some(text) = leaf(value, indent)? {
            self.text.push(' ');
            self.line(&text);
            return Ok(());
        }
        self.text.push('\n');
        let deeper = if value.is_array() { indent } else { indent + 2 };
        self.value(value, at, deeper, false)
    }

    /// A text of several lines, as it is if a block can hold it.
    fn block(&mut self, text: &str, indent: usize) -> Result<()> {
        let (body, header) = match text.strip_suffix('\n') {
            Some(body) => (body, "|"),
            None => (text, "|-"),
        };
        let starts = body.starts_with(|c: char| c != '\n' && c != ' ');
        let fits = |line: &str| is_printable(line) && !line.ends_with(' ');
        if !starts || body.ends_with('\n') || !body.split('\n').all(fits) {
            self.line(&quoted(text)?);
            return Ok(());
        }
        self.line(header);
        for line in body.split('\n') {
            if !line.is_empty() {
                self.pad(indent);
            }
            self.line(line);
        }
        Ok(())
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Writes the notes of a part above the line that has been begun.
    fn comment(&mut self, at: &str) {
        let begin = self.text.rfind('\n').map_or(0, |end| end + 1);
        let line = self.text.split_off(begin);
        let indent = line.len() - line.trim_start().len();
        for note in self.notes.iter().filter(|note| note.at == at) {
            let _ = writeln!(self.text, "{:indent$}# {}", "", one_line(&note.text));
        }
        self.text.push_str(&line);
    }

    fn pad(&mut self, indent: usize) {
        self.text.push_str(&" ".repeat(indent));
    }
}

/// A scalar, an empty object, or a list of scalars that fits on the line of its key.
fn leaf(value: &Value, indent: usize) -> Result<Option<String>> {
    Ok(match value {
        Value::Object(fields) => fields.is_empty().then(|| "{}".to_owned()),
        Value::Array(items) => {
            let short = |item: &Value| match item {
                Value::String(text) => !text.contains('\n'),
                Value::Object(_) | Value::Array(_) => false,
                _ => true,
            };
            if !items.iter().all(short) {
                return Ok(None);
            }
            let written: Result<Vec<String>> = items.iter().map(scalar).collect();
            let written = format!("[{}]", written?.join(", "));
            let fits = indent + written.chars().count() <= WIDTH;
            (fits || !items.iter().any(Value::is_string)).then_some(written)
        }
        other => Some(scalar(other)?),
    })
}

fn several_lines(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| text.contains('\n'))
}

fn scalar(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => string(text),
        other => Ok(other.to_string()),
    }
}

/// A string on one line, as a value, a key, or an item of a list on one line.
fn string(text: &str) -> Result<String> {
    if !is_printable(text) || text.contains('\\') {
        return quoted(text);
    }
    if text.contains('"') {
        return Ok(format!("'{}'", text.replace('\'', "''")));
    }
    // In a list on one line these characters would end the scalar.
    if text.contains([',', '[', ']', '{', '}', '#']) {
        return quoted(text);
    }
    // Block scalars depend on the indentation of their place.
    let options: SerializerOptions = ser_options! { prefer_block_scalars: false };
    let written = serde_saphyr::to_string_with_options(&text, options)?;
    let written = written.strip_suffix('\n').unwrap_or(&written);
    if written.contains('\n') {
        return quoted(text);
    }
    Ok(written.to_owned())
}

/// A JSON string, which is YAML, too, once characters that YAML does not allow are escaped.
fn quoted(text: &str) -> Result<String> {
    let mut out = String::new();
    for c in serde_json::to_string(text)?.chars() {
        if is_allowed(c) {
            out.push(c);
        } else {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
    }
    Ok(out)
}

/// False for characters that end a line or that YAML 1.1 or 1.2 does not allow in a text.
fn is_allowed(c: char) -> bool {
    let breaks = ['\u{2028}', '\u{2029}', '\u{feff}', '\u{fffe}', '\u{ffff}'];
    !c.is_control() && !breaks.contains(&c)
}

fn is_printable(text: &str) -> bool {
    text.chars().all(is_allowed)
}

/// A text without line breaks and control characters, for a comment or a terminal.
pub fn one_line(text: &str) -> String {
    let shown = |c| if is_allowed(c) { c } else { ' ' };
    text.chars().map(shown).collect()
}

/// JSON pointer to a field.
fn field_at(object: &str, key: &str) -> String {
    format!("{object}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn ordered(fields: &Map<String, Value>) -> Vec<&String> {
    let mut keys: Vec<&String> = fields.keys().collect();
    let rank = |key: &str| FIRST.iter().position(|f| *f == key).unwrap_or(FIRST.len());
    keys.sort_by_key(|key| (rank(key), key.as_str()));
    keys
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn kept(object: &Value) -> Document {
        let object = object.clone();
        let notes = Vec::new();
        Document { object, notes }
    }

    /// Strings that YAML reads as something else unless they are quoted, and long ones.
    fn strings() -> impl Strategy<Value = String> {
        let words = "yes|no|on|off|y|n|null|~|true|False|0x1f|0o17|0123|1e3|1_000|.5|.inf|\\.nan|12:30:45\
            |2026-11-29|-|---|\\.\\.\\.|<<|=|!tag|&a|\\*a|%d|@x|`x|\\?|\\? a|: |a: b|a:|# a|a #b|\\[a|\\{a|'|\"|\\\\|";
        let line = "[ -~\\t]{0,100}|[a-z /:,=-]{75,200}|[a-z]{90}|( )?[a-z]{0,90}( )?";
        prop_oneof![
            3 => words.prop_map(String::from),
            3 => line.prop_map(String::from),
            2 => any::<String>(),
            2 => "([ -~\\t\\r]{0,90}\n){0,4}[ -~]{0,90}",
            1 => "[\\PC\u{0}-\u{20}\u{7f}-\u{a0}\u{2028}\u{2029}\u{feff}\u{fffe}]{0,12}",
        ]
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            1 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            1 => (-1e9..1e9f64).prop_map(Value::from),
            6 => strings().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(strings(), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// JSON pointers to all parts of a value.
    fn parts(value: &Value, at: &str, out: &mut Vec<String>) {
        out.push(at.to_owned());
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    parts(value, &field_at(at, key), out);
                }
            }
            Value::Array(items) => {
                for (n, value) in items.iter().enumerate() {
                    parts(value, &format!("{at}/{n}"), out);
                }
            }
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_object_with_comments_reads_back_equal(
            spec in values(), comments in prop::collection::vec((any::<prop::sample::Index>(), strings()), 0..4)
        ) {
            let object = json!({"kind": "A", "spec": spec});
            let mut all = Vec::new();
            parts(&object, "", &mut all);
            let notes: Vec<Note> = comments.into_iter().map(|(at, text)| Note {
                at: at.get(&all).clone(),
                text: format!("mark {text}"),
            }).collect();
            let plain = text_of(&[kept(&object)]).unwrap();
            let lines = |text: &str| text.lines().filter(|l| l.trim_start().starts_with("# mark")).count();
            let expected = lines(&plain) + notes.len();
            let document = Document { object: object.clone(), notes };
            let written = text_of(&[document.clone(), kept(&object)]).unwrap();
            prop_assert_eq!(read(&written).unwrap(), [object.clone(), object], "{}", written);
            prop_assert_eq!(lines(&written), expected + lines(&plain), "{}", written);
            prop_assert!(write(&[document]).is_ok());
        }

        /// How commands write their reports.
        #[test]
        fn any_value_written_without_comments_reads_back_equal(value in values()) {
            let written = serde_saphyr::to_string(&value).unwrap();
            let read: Value = serde_saphyr::from_str(&written).unwrap();
            prop_assert_eq!(read, value, "{}", written);
        }
    }

    #[test]
    fn written_documents_read_back_equal() {
        let object = json!({
            "kind": "A", "metadata": {"name": "on", "annotations": {"a/b": "x: y # z", "empty": ""}},
            "spec": {"list": [1, "two, three", null, true], "nested": [[1, 2], {"b": {}, "a": []}],
                "script": "set -e\n\n  run\n", "cut": "a\nb", "odd": " a\n b", "text": "8", "n": 8, "tabs": "a\tb\nc",
                "long": "a ".repeat(60), "longer key ".repeat(10): ["b c ".repeat(30), 1], "zeros": "\n", "led": "\n  a",
                "args": ["-c", "a\nb", "{\"a\": [1]}", "it's \"b\"", "x:y", "-", "1e3", "~"]},
        });
        let written = write(&[kept(&object), kept(&object)]).unwrap();
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
        let written = write(&[Document { object, notes }]).unwrap();
        let expected = "# no port\n# elsewhere\nspec:\n  groups:\n  # first group\n  - name: a\n    size: 2\n  # held\n  suspend: true\n";
        assert_eq!(written, expected);
    }

    #[test]
    fn a_comment_about_the_first_item_of_a_list_in_a_list_is_above_its_line() {
        let object = json!({"spec": [[{"name": "a", "size": 2}, 1]]});
        let note = |at: &str| Note {
            at: at.into(),
            text: at.into(),
        };
        let notes = ["/spec/0/0/name", "/spec/0/0", "/spec/0/1", "/spec/0"]
            .map(note)
            .into();
        let written = write(&[Document { object, notes }]).unwrap();
        let expected = "# /spec/0/1\n# /spec/0\nspec:\n# /spec/0/0\n# /spec/0/0/name\n- - name: a\n    size: 2\n  - 1\n";
        assert_eq!(written, expected);
    }

    #[test]
    fn the_error_of_bad_yaml_names_its_line() {
        let error = format!("{:#}", read("a: 1\nb: [\n").unwrap_err());
        assert!(error.contains("line "), "{error}");
    }
}
