//! Conversion of jobs of other projects to TrainingWorkloads.
//!
//! A pure function of documents. One table for each origin kind says what happens to each of its
//! fields; [`reference`] prints the tables.

mod draft;
mod error;
mod field;
mod hosts;
mod job;
mod jobset;
mod kubeflow;
mod kueue;
mod mpi;
pub mod reference;
mod schema;
mod shell;
mod template;
mod trainer;
mod volcano;
pub mod yaml;

use std::collections::BTreeSet;

use serde_json::Value;

pub use self::draft::Note;
use self::draft::{Draft, text};
pub use self::error::ConvertError;
use self::error::Result;
pub use self::field::{Entry, FieldsAt, Path, PathStep, find_entry};
pub use self::schema::{CheckError, check};

/// A kind of another project.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub kind: &'static str,
    pub versions: &'static [&'static str],
    pub table: &'static [FieldsAt],
}

/// Kinds that can be converted. Runtimes are converted with the TrainJob that names them.
pub const ORIGINS: &[Origin] = &[
    origin("PyTorchJob", &["kubeflow.org/v1"], kubeflow::PYTORCH),
    origin("TFJob", &["kubeflow.org/v1"], kubeflow::TF),
    origin("JAXJob", &["kubeflow.org/v1"], kubeflow::JAX),
    origin(
        "MPIJob",
        &["kubeflow.org/v1", "kubeflow.org/v2beta1"],
        mpi::TABLE,
    ),
    origin(
        "TrainJob",
        &["trainer.kubeflow.org/v1alpha1"],
        trainer::TABLE,
    ),
    origin(
        "ClusterTrainingRuntime",
        &["trainer.kubeflow.org/v1alpha1"],
        trainer::RUNTIME,
    ),
    origin(
        "TrainingRuntime",
        &["trainer.kubeflow.org/v1alpha1"],
        trainer::RUNTIME,
    ),
    origin("JobSet", &["jobset.x-k8s.io/v1alpha2"], jobset::TABLE),
    origin("Job", &["batch.volcano.sh/v1alpha1"], volcano::TABLE),
    origin("Job", &["batch/v1"], job::TABLE),
];

/// Kinds of the core that belong to a job and stay without a comment.
const KEPT: [&str; 6] = [
    "ConfigMap",
    "Namespace",
    "PersistentVolumeClaim",
    "Secret",
    "Service",
    "ServiceAccount",
];

const fn origin(
    kind: &'static str,
    versions: &'static [&'static str],
    table: &'static [FieldsAt],
) -> Origin {
    Origin {
        kind,
        versions,
        table,
    }
}

/// A document of the output: a workload, or an object of another kind, which is unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub object: Value,
    pub notes: Vec<Note>,
}

/// API groups whose objects order the jobs of another project.
const QUEUES: [&str; 2] = ["kueue.x-k8s.io/", "scheduling.volcano.sh/"];

/// The objects of a manifest's documents, with those of Lists.
pub fn objects(documents: Vec<Value>) -> Result<Vec<Value>> {
    let objects: Vec<Value> = documents.into_iter().flat_map(items).collect();
    let is_object = |o: &Value| text(o, "apiVersion").and(text(o, "kind")).is_some();
    if objects.iter().all(is_object) {
        Ok(objects)
    } else {
        Err(ConvertError::NoObject)
    }
}

/// Converts the objects of an input, in their order.
pub fn convert(objects: &[Value]) -> Result<Vec<Document>> {
    let mut out = Vec::new();
    let mut names = BTreeSet::new();
    let mut jobs = 0;
    for object in objects {
        match find_origin(object).map_err(|e| e.within(label(object)))? {
            Some(origin) if origin.kind.ends_with("TrainingRuntime") => {}
            Some(origin) => {
                let made = workload(origin, object, objects, &names);
                let document = made.map_err(|e| e.within(label(object)))?;
                let name = document.object["metadata"]["name"].as_str();
                names.extend(name.map(str::to_owned));
                out.push(document);
                jobs += 1;
            }
            None => out.push(kept(object)),
        }
    }
    if jobs == 0 {
        let supported = supported();
        return Err(ConvertError::NoJob { supported });
    }
    Ok(out)
}

/// Kind and name of an object, for messages.
fn label(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let mut name = text(&metadata["name"]);
    if name.is_empty() {
        name = text(&metadata["generateName"]);
    }
    format!("{} {name}", text(&object["kind"]))
        .trim()
        .to_owned()
}

fn kept(object: &Value) -> Document {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let advice = match version {
        "v1" if KEPT.contains(&kind) => None,
        _ if QUEUES.iter().any(|group| version.starts_with(group)) => {
            Some("kept as it is. Lockstep does not read it: delete it, unless other jobs need it.")
        }
        _ => Some("kept as it is. Check whether the workload still needs it."),
    };
    let note = advice.map(|advice| Note {
        at: "/apiVersion".to_owned(),
        text: format!("{}: {advice}", label(object)),
    });
    Document {
        object: object.clone(),
        notes: note.into_iter().collect(),
    }
}

/// The objects of a List, or the document itself; nothing for an empty document.
fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        list if list["kind"] == "List" => list["items"].as_array().cloned().unwrap_or_default(),
        object => vec![object],
    }
}

/// Finds the origin kind of an object; `None` for an object that is no job and stays as it is.
pub fn find_origin(object: &Value) -> Result<Option<&'static Origin>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let found = ORIGINS
        .iter()
        .find(|o| o.kind == kind && o.versions.contains(&version));
    if found.is_some() {
        return Ok(found);
    }
    let (kind, version) = (kind.to_owned(), version.to_owned());
    if version.starts_with("ray.io/") {
        return Err(ConvertError::Ray { kind, version });
    }
    // Another version of a known kind, or a job of an unknown controller.
    if kind.ends_with("Job") || ORIGINS.iter().any(|origin| origin.kind == kind) {
        return Err(ConvertError::UnknownKind {
            kind,
            version,
            supported: supported(),
        });
    }
    Ok(None)
}

fn supported() -> String {
    let names = ORIGINS.iter().map(|o| {
        let versions: Vec<&str> = o.versions.to_vec();
        format!("{} ({})", o.kind, versions.join(", "))
    });
    names.collect::<Vec<_>>().join(", ")
}

fn workload(
    origin: &Origin,
    object: &Value,
    objects: &[Value],
    names: &BTreeSet<String>,
) -> Result<Document> {
    shell::check(object)?;
    let mut draft = Draft::new(object, names)?;
    match (origin.kind, origin.versions) {
        ("PyTorchJob", _) => kubeflow::convert_pytorch(&mut draft)?,
        ("TFJob", _) => kubeflow::convert_tf(&mut draft)?,
        ("JAXJob", _) => kubeflow::convert_jax(&mut draft)?,
        ("MPIJob", _) => mpi::convert(&mut draft)?,
        ("JobSet", _) => jobset::convert(&mut draft)?,
        ("Job", ["batch/v1"]) => job::convert(&mut draft)?,
        ("Job", _) => volcano::convert(&mut draft)?,
        _ => {
            let runtime = runtime(object, objects)?;
            shell::check(runtime)?;
            draft.label = "runtime ";
            trainer::convert(&mut draft, runtime)?;
            draft.report(runtime, trainer::RUNTIME)?;
            draft.label = "";
        }
    }
    draft.report(object, origin.table)?;
    kueue::convert(&mut draft)?;
    let (workload, unknown) = check(&draft.workload)?;
    for path in unknown {
        let text = "not a field of the API, so that kubectl refuses the workload. Remove it, or write what it should be.";
        draft.note(&path.pointer(), &path.to_string(), text);
    }
    template::review(&mut draft, &workload);
    Ok(Document {
        object: draft.workload,
        notes: draft.notes,
    })
}

/// Kind, namespace and name of the runtimes that the TrainJobs of an input name and that it lacks.
pub fn missing_runtimes(objects: &[Value]) -> Vec<(String, String, String)> {
    let mut out = Vec::new();
    for job in objects.iter().filter(|o| o["kind"] == "TrainJob") {
        let (kind, name) = trainer::runtime_of(job);
        let namespace = job["metadata"]["namespace"].as_str().unwrap_or_default();
        let named = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        if find_runtime(job, objects).is_none() && !out.contains(&named) {
            out.push(named);
        }
    }
    out
}

fn find_runtime<'o>(job: &Value, objects: &'o [Value]) -> Option<&'o Value> {
    let (kind, name) = trainer::runtime_of(job);
    let mut objects = objects.iter();
    objects.find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
}

fn runtime<'o>(job: &Value, objects: &'o [Value]) -> Result<&'o Value> {
    let (kind, name) = trainer::runtime_of(job);
    find_runtime(job, objects).ok_or_else(|| ConvertError::NoRuntime {
        kind: kind.to_owned(),
        name: name.to_owned(),
    })
}
