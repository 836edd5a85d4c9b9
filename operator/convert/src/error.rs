//! Why an input is refused, with what to do.

use thiserror::Error;

use crate::schema::CheckError;

pub type Result<T> = std::result::Result<T, ConvertError>;

/// Why an input cannot be converted. Paths are those of the input.
#[derive(Debug, Error)]
pub enum ConvertError {
    /// An error in one object of the input.
    #[error("{object}: {error}")]
    In { object: String, error: Box<Self> },
    #[error("no job in the input. Supported kinds: {supported}")]
    NoJob { supported: String },
    #[error("not an object of Kubernetes: it has no apiVersion or no kind")]
    NoObject,
    #[error(
        "{kind} of {version} cannot be converted: Ray starts and places its own processes, with a head that keeps their state. Keep KubeRay, or run the training function with torchrun"
    )]
    Ray { kind: String, version: String },
    #[error(
        "{kind:?} of {version:?} is not supported: write its TrainingWorkload by hand. Supported kinds: {supported}"
    )]
    UnknownKind {
        kind: String,
        version: String,
        supported: String,
    },
    #[error(
        "spec.runtimeRef: {kind} {name} is not in the input. Add it: kubectl get {} {name} -o yaml",
        .kind.to_lowercase()
    )]
    NoRuntime { kind: String, name: String },
    #[error("MPI needs a launcher, and no part of the job or its runtime is named {name:?}")]
    NoLauncher { name: String },
    #[error("the runtime has no replicatedJobs")]
    EmptyRuntime,
    #[error("metadata.name: missing. A TrainingWorkload needs a name")]
    NoName,
    #[error("{path}: missing")]
    Missing { path: String },
    #[error("{path}.spec.containers: missing. A pod template needs at least one container")]
    NoContainers { path: String },
    #[error("{path}: not a list")]
    NoList { path: String },
    #[error("{path}: {value} is neither an object nor a list")]
    NoParts { path: String, value: String },
    #[error("{path}: {value} is not a whole number")]
    NoNumber { path: String, value: String },
    #[error("{path}: {value} is a variable of a shell; run envsubst on the file first")]
    ShellVariable { path: String, value: String },
    /// `field`: with its value if that is short.
    #[error("{field}: {why}")]
    Field { field: String, why: &'static str },
    #[error("{path}: unknown role. The roles are {roles}")]
    UnknownRole { path: String, roles: String },
    #[error(
        "{path}.completions: {completions} differs from parallelism {parallelism}. A gang runs all members at the same time; set both to the same number"
    )]
    NotTogether {
        path: String,
        completions: i64,
        parallelism: i64,
    },
    #[error(
        "{path}.completions: missing. A work queue is no gang; set completions: {pods} if all pods train together"
    )]
    WorkQueue { path: String, pods: i64 },
    #[error(
        "spec.trainer.numNodes: {nodes} leaves no node beside the launcher. Set at least 2, or use a runtime without runLauncherAsNode"
    )]
    NoNodeBesideLauncher { nodes: i64 },
    #[error("no groups")]
    NoGroups,
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl ConvertError {
    pub(crate) fn missing(path: impl Into<String>) -> Self {
        Self::Missing { path: path.into() }
    }

    pub(crate) fn within(self, object: String) -> Self {
        let error = Box::new(self);
        Self::In { object, error }
    }
}
