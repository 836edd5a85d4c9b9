//! The command `convert`.

use anyhow::{Context, Result};
use serde_json::Value;

use super::show;
use crate::args::{ConvertArgs, ConvertFormat};
use crate::convert::{Document, convert as convert_documents, yaml};
use crate::file;
use crate::outcome::Outcome;

pub fn convert(args: &ConvertArgs) -> Result<Outcome> {
    let mut documents = Vec::new();
    for path in &args.filename {
        let text = file::read_text(path)?;
        let read = yaml::read(&text).with_context(|| format!("manifest {}", path.display()))?;
        documents.extend(read);
    }
    let converted = convert_documents(documents)?;
    let notes: Vec<&str> = converted.iter().flat_map(notes).collect();
    match args.output {
        ConvertFormat::Yaml => {
            show::write(&yaml::write(&converted)?)?;
            if !notes.is_empty() {
                eprintln!("warning: {} to read in the output", comments(notes.len()));
            }
        }
        ConvertFormat::Json => {
            show::write(&json(&converted)?)?;
            for note in notes {
                eprintln!("warning: {note}");
            }
        }
    }
    Ok(Outcome::Done)
}

fn notes(document: &Document) -> Vec<&str> {
    match document {
        Document::Workload { notes, .. } => notes.iter().map(|n| n.text.as_str()).collect(),
        Document::Kept(_) => Vec::new(),
    }
}

fn comments(number: usize) -> String {
    lockstep_api::words::count(number, "comment")
}

/// One object, or a List of several.
fn json(documents: &[Document]) -> Result<String> {
    let objects = documents.iter().map(|document| match document {
        Document::Workload { object, .. } | Document::Kept(object) => object.clone(),
    });
    let mut objects: Vec<Value> = objects.collect();
    let written = match (objects.len(), objects.pop()) {
        (1, Some(object)) => object,
        (_, last) => {
            objects.extend(last);
            serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects})
        }
    };
    Ok(format!("{}\n", serde_json::to_string_pretty(&written)?))
}
