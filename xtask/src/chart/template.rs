//! Manifests as templates: fields are replaced by actions of Go's text/template.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// How a template writes a field.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Text with actions.
    Text(String),
    /// A structured value.
    Block(&'static str),
    /// A structured value. If it is empty, the field is absent.
    Optional(&'static str),
    /// More fields beside this one, which itself is absent.
    Beside(&'static str),
    /// The field or element under a condition.
    If(&'static str, Value),
}

/// Replaces fields of objects by markers, and markers in YAML by actions.
#[derive(Default)]
pub(super) struct Template(Vec<Action>);

const MARKER: &str = "LOCKSTEP_ACTION_";

impl Template {
    /// Sets the field or element at a path. Creates it if its parent exists.
    pub(super) fn set(&mut self, object: &mut Value, path: &str, action: Action) -> Result<()> {
        let (parent, last) = path.rsplit_once('/').context("a path")?;
        let parent = pointer(object, parent)?;
        let parent = object.pointer_mut(&parent);
        let parent = parent.with_context(|| format!("no field {path}"))?;
        let marker = self.marker(action);
        if let Some(elements) = parent.as_array_mut() {
            match position(elements, last) {
                Some(at) => elements[at] = marker,
                // As kustomize does.
                None => elements.insert(0, marker),
            }
        } else {
            let fields = parent.as_object_mut();
            let fields = fields.with_context(|| format!("{path} is in no object"))?;
            fields.insert(last.replace("~1", "/"), marker);
        }
        Ok(())
    }

    pub(super) fn marker(&mut self, action: Action) -> Value {
        self.0.push(action);
        json!(format!("{MARKER}{}_", self.0.len() - 1))
    }

    /// The object as YAML with all actions.
    pub(super) fn text(&self, object: &Value) -> Result<String> {
        let yaml = serde_saphyr::to_string(object)?;
        let mut out = String::new();
        for line in yaml.lines() {
            self.line(&escaped(line), &mut out)?;
        }
        Ok(out)
    }

    fn line(&self, line: &str, out: &mut String) -> Result<()> {
        let Some((before, rest)) = line.split_once(MARKER) else {
            let _ = writeln!(out, "{line}");
            return Ok(());
        };
        let (number, after) = rest.split_once('_').context("a marker")?;
        let action = &self.0[number.parse::<usize>()?];
        let indent = line.len() - line.trim_start().len();
        let space = " ".repeat(indent);
        let inner = indent + 2;
        let _ = match action {
            Action::Text(text) => writeln!(out, "{before}{text}{after}"),
            Action::Block(value) => {
                writeln!(out, "{before}{{{{- toYaml {value} | nindent {inner} }}}}")
            }
            Action::Optional(value) => writeln!(
                out,
                "{space}{{{{- with {value} }}}}\n{before}{{{{- toYaml . | nindent {inner} }}}}\n{space}{{{{- end }}}}"
            ),
            Action::Beside(values) => writeln!(
                out,
                "{space}{{{{- with {values} }}}}\n{space}{{{{- toYaml . | nindent {indent} }}}}\n{space}{{{{- end }}}}"
            ),
            Action::If(condition, value) => {
                let key = before.trim().trim_end_matches(':');
                let whole = match key {
                    "-" => json!([value]),
                    _ => json!({key: value}),
                };
                let _ = writeln!(out, "{space}{{{{- if {condition} }}}}");
                for line in serde_saphyr::to_string(&whole)?.lines() {
                    let _ = writeln!(out, "{space}{}", escaped(line));
                }
                writeln!(out, "{space}{{{{- end }}}}")
            }
        };
        Ok(())
    }
}

/// Text in which Go's text/template finds no action.
fn escaped(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
}

/// A template that renders nothing unless the condition holds.
pub(super) fn when(condition: &str, text: &str) -> String {
    if condition.is_empty() {
        return text.to_owned();
    }
    format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")
}

/// The field at a path.
pub(super) fn at<'a>(object: &'a Value, path: &str) -> Result<&'a Value> {
    let pointer = pointer(object, path)?;
    let found = object.pointer(&pointer);
    found.with_context(|| format!("no field {path}"))
}

/// JSON pointer of a path that may name elements of lists by their field `name`.
fn pointer(object: &Value, path: &str) -> Result<String> {
    let mut out = String::new();
    for key in path.split('/').skip(1) {
        let here = object.pointer(&out);
        let here = here.with_context(|| format!("no field {path}"))?;
        match here.as_array() {
            Some(elements) => {
                let at = position(elements, key);
                let at = at.with_context(|| format!("{path}: no element {key}"))?;
                let _ = write!(out, "/{at}");
            }
            None => {
                let _ = write!(out, "/{key}");
            }
        }
    }
    ensure!(path.is_empty() || !out.is_empty(), "{path} is no path");
    Ok(out)
}

/// Position of the element of this name, or with this index.
fn position(elements: &[Value], key: &str) -> Option<usize> {
    let named = elements.iter().position(|e| e["name"] == key);
    named.or_else(|| key.parse().ok().filter(|at| *at < elements.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(path: &str, action: Action) -> String {
        let mut object = json!({"a": {"list": [{"name": "x", "b": 1}]}});
        let mut template = Template::default();
        template.set(&mut object, path, action).unwrap();
        template.text(&object).unwrap()
    }

    #[test]
    fn each_action_writes_its_field() {
        let text = Action::Text("{{ .Values.b }}".to_owned());
        let conditional = Action::If(".Values.c", json!({"d": "{{ e }}"}));
        for (path, action, expected) in [
            ("/a/list/x/b", text, "- b: {{ .Values.b }}\n"),
            (
                "/a/c",
                Action::Block(".Values.c"),
                "  c: {{- toYaml .Values.c | nindent 4 }}\n",
            ),
            (
                "/a/c",
                Action::Optional(".Values.c"),
                "  {{- with .Values.c }}\n  c: {{- toYaml . | nindent 4 }}\n  {{- end }}\n",
            ),
            (
                "/a/c",
                Action::Beside(".Values.c"),
                "  {{- with .Values.c }}\n  {{- toYaml . | nindent 2 }}\n  {{- end }}\n",
            ),
            (
                "/a/list/1",
                conditional.clone(),
                "  {{- if .Values.c }}\n  - d: \"{{ \"{{\" }} e }}\"\n  {{- end }}\n",
            ),
            (
                "/a/c",
                conditional,
                "  {{- if .Values.c }}\n  c:\n    d: \"{{ \"{{\" }} e }}\"\n  {{- end }}\n",
            ),
        ] {
            let found = template(path, action);
            assert!(found.contains(expected), "{path}: {found}");
        }
    }

    #[test]
    fn a_path_without_a_parent_is_refused() {
        let mut object = json!({"a": {}});
        let action = Action::Block(".Values.b");
        let refused = Template::default().set(&mut object, "/b/c", action);
        assert_eq!(refused.unwrap_err().to_string(), "no field /b/c");
    }
}
