//! Conversion of jobs of other projects to TrainingWorkloads.
//!
//! A pure function of documents. One table for each origin kind says what happens to each of its
//! fields; [`reference`] prints the tables.

mod draft;
mod field;
mod hosts;
mod job;
mod jobset;
mod kubeflow;
mod mpi;
pub mod reference;
mod template;
mod trainer;
mod volcano;
pub mod yaml;

use anyhow::{Context, Result, bail, ensure};
use kube::CustomResourceExt;
use kube::core::cel::{CompiledSchema, compile_schema, validate_compiled};
use lockstep_api::TrainingWorkload;
use serde_json::Value;

use self::draft::Draft;
pub use self::draft::Note;
pub use self::field::{Entry, FieldsAt, Path, PathStep, look_up};

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

/// Kinds that belong to a job and stay as they are.
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

/// A document of the output.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    Workload {
        object: Value,
        notes: Vec<Note>,
    },
    /// An object of another kind, unchanged.
    Kept(Value),
}

/// Converts the objects of an input, in their order.
pub fn convert(documents: Vec<Value>) -> Result<Vec<Document>> {
    let objects: Vec<Value> = documents.into_iter().flat_map(items).collect();
    let mut out = Vec::new();
    for object in &objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let named = || {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            format!("{kind} {name}")
        };
        match find_origin(object).with_context(named)? {
            Some(origin) if origin.kind.ends_with("TrainingRuntime") => {}
            Some(origin) => out.push(workload(origin, object, &objects).with_context(named)?),
            None => out.push(Document::Kept(object.clone())),
        }
    }
    let converted = |d: &Document| matches!(d, Document::Workload { .. });
    ensure!(
        out.iter().any(converted),
        "no job in the input. Supported kinds: {}",
        supported()
    );
    Ok(out)
}

/// The objects of a List, or the document itself; nothing for an empty document.
fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        list if list["kind"] == "List" => list["items"].as_array().cloned().unwrap_or_default(),
        object => vec![object],
    }
}

/// Finds the origin kind of an object; `None` for an object that stays as it is.
pub fn find_origin(object: &Value) -> Result<Option<&'static Origin>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let found = ORIGINS
        .iter()
        .find(|o| o.kind == kind && o.versions.contains(&version));
    if found.is_some() || (version == "v1" && KEPT.contains(&kind)) {
        return Ok(found);
    }
    if version.starts_with("ray.io/") {
        bail!(
            "{kind} of {version} cannot be converted: Ray starts and places its own processes, with a head that keeps their state. Keep KubeRay, or run the training function with torchrun"
        );
    }
    bail!(
        "{kind:?} of {version:?} is not supported. Supported kinds: {}",
        supported()
    )
}

fn supported() -> String {
    let names = ORIGINS.iter().map(|o| {
        let versions: Vec<&str> = o.versions.to_vec();
        format!("{} ({})", o.kind, versions.join(", "))
    });
    names.collect::<Vec<_>>().join(", ")
}

fn workload(origin: &Origin, object: &Value, objects: &[Value]) -> Result<Document> {
    let mut draft = Draft::new(object)?;
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
            draft.label = "runtime ";
            trainer::convert(&mut draft, runtime)?;
            draft.report(runtime, trainer::RUNTIME)?;
            draft.label = "";
        }
    }
    draft.report(object, origin.table)?;
    let (object, notes) = (draft.workload, draft.notes);
    check(&object)?;
    Ok(Document::Workload { object, notes })
}

fn runtime<'o>(job: &Value, objects: &'o [Value]) -> Result<&'o Value> {
    let (kind, name) = trainer::runtime_of(job);
    let found = objects
        .iter()
        .find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
    found.with_context(|| {
        format!(
            "spec.runtimeRef: {kind} {name} is not in the input. Add it: kubectl get {} {name} -o yaml",
            kind.to_lowercase()
        )
    })
}

thread_local! {
    /// Compiled once, because a file may have many jobs.
    static RULES: CompiledSchema = compile_schema(&schema());
}

/// Schema of the workload, with its rules.
fn schema() -> Value {
    let versions = TrainingWorkload::crd().spec.versions.into_iter();
    let mut schemas = versions.filter_map(|v| v.schema?.open_api_v3_schema);
    serde_json::to_value(schemas.next()).unwrap_or_default()
}

/// Checks types and rules of a workload as the API server does. Accepts unknown fields.
pub fn check(object: &Value) -> Result<()> {
    let refused = "the workload would be refused";
    let workload: TrainingWorkload = serde_path_to_error::deserialize(object).context(refused)?;
    let complete = serde_json::to_value(&workload)?;
    let Err(errors) = RULES.with(|rules| validate_compiled(rules, &complete, None)) else {
        return Ok(());
    };
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    bail!("{refused}: {}", errors.join("; "))
}
