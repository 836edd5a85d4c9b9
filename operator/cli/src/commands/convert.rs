//! The command `convert`.

use anyhow::{Context, Result, bail};
use lockstep_convert::{Document, convert as convert_objects, missing_runtimes, yaml};
use serde_json::Value;

use super::show;
use crate::args::{Connection, ConvertArgs, ConvertFormat};
use crate::cluster::ClusterReader;
use crate::file;
use crate::outcome::Outcome;

pub async fn convert(connection: &Connection, args: &ConvertArgs) -> Result<Outcome> {
    let mut objects = Vec::new();
    for path in file::manifests(&args.filename)? {
        let text = file::read_text(&path)?;
        let named = || format!("manifest {}", path.display());
        let documents = yaml::read(&text).with_context(named)?;
        objects.extend(lockstep_convert::objects(documents).with_context(named)?);
    }
    let namespace = args.namespace.as_deref();
    let failed = add_runtimes(connection, namespace, &mut objects)
        .await
        .err();
    let converted = match (convert_objects(&objects), failed) {
        (Err(error), Some(failed)) => {
            bail!("{error:#}\nNot read from the cluster: {failed:#}")
        }
        (converted, _) => converted?,
    };
    let notes: Vec<String> = converted
        .iter()
        .flat_map(|document| &document.notes)
        .map(|note| yaml::one_line(&note.text))
        .collect();
    match args.output {
        ConvertFormat::Yaml => {
            show::write(&yaml::write(&converted)?)?;
            if !notes.is_empty() {
                note!("warning: {} to read in the output", comments(notes.len()));
            }
        }
        ConvertFormat::Json => {
            show::write(&json(&converted)?)?;
            for note in notes {
                note!("warning: {note}");
            }
        }
    }
    Ok(Outcome::Done)
}

/// Adds the runtimes that TrainJobs name and that the input lacks, from the cluster.
async fn add_runtimes(
    connection: &Connection,
    default: Option<&str>,
    objects: &mut Vec<Value>,
) -> Result<()> {
    let missing = missing_runtimes(objects);
    if missing.is_empty() {
        return Ok(());
    }
    let cluster = ClusterReader::connect(connection).await?;
    let default = default.unwrap_or(cluster.namespace());
    for (kind, namespace, name) in missing {
        let named = Some(namespace.as_str()).filter(|n| !n.is_empty());
        let namespace = named.unwrap_or(default);
        let found = cluster.training_runtime(&kind, namespace, &name).await?;
        objects.push(found.with_context(|| format!("it has no {kind} {name}"))?);
    }
    Ok(())
}

fn comments(number: usize) -> String {
    lockstep_api::words::count(number, "comment")
}

/// One object, or a List of several.
fn json(documents: &[Document]) -> Result<String> {
    let mut objects: Vec<Value> = documents.iter().map(|d| d.object.clone()).collect();
    let written = match (objects.len(), objects.pop()) {
        (1, Some(object)) => object,
        (_, last) => {
            objects.extend(last);
            serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects})
        }
    };
    Ok(format!("{}\n", serde_json::to_string_pretty(&written)?))
}
