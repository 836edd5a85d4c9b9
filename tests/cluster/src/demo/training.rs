//! Workloads whose members are real `lockstep-trainer` processes, and their files, which contain
//! progress that no API shows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::process::workspace_binary;
use lockstep_cluster::scenario::node;
use serde_json::{Value, json};

/// Volume, and the file in it, with the progress of a member.
const PROGRESS: (&str, &str) = ("progress", "steps");
/// Steps between two checkpoints. A step takes 50 ms.
const CHECKPOINT_EVERY: u64 = 60;

/// Folders of trainings on this machine.
pub struct Trainings {
    nodes: PathBuf,
    checkpoints: PathBuf,
    program: PathBuf,
}

/// Progress of a member.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// First step of the current attempt.
    pub begun_at: u64,
    /// Completed steps.
    pub step: u64,
}

/// Last checkpoint of a training.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Reason: `interval`, `stop` (SIGTERM) or `end`.
    pub occasion: String,
    /// Completed steps.
    pub step: u64,
    /// Time in RFC 3339.
    pub time: String,
}

impl Trainings {
    /// Keeps the files below this folder.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let program = workspace_binary("lockstep-trainer")?;
        Ok(Self {
            nodes: folder.join("processes"),
            checkpoints: folder.join("checkpoints"),
            program,
        })
    }

    /// Arguments of nodes that run processes.
    pub fn node_args(&self) -> Vec<String> {
        vec![
            "--runtime=subprocess".into(),
            format!("--work-dir={}", self.nodes.display()),
        ]
    }

    /// A gang of trainers. `env` is added to their environment, `patch` merged into the spec.
    /// Checkpoints are in a folder that outlives the pods, as in a shared file system.
    pub fn manifest(
        &self,
        name: &str,
        members: i32,
        gpus: i32,
        env: Value,
        patch: Value,
    ) -> Result<Value> {
        let checkpoints = self.checkpoints.join(name);
        std::fs::create_dir_all(&checkpoints)?;
        let mut variables = vec![
            json!({"name": "CHECKPOINT_DIR", "value": "/checkpoints"}),
            json!({"name": "CHECKPOINT_EVERY", "value": CHECKPOINT_EVERY.to_string()}),
            json!({"name": "PROGRESS_FILE", "value": format!("/{}/{}", PROGRESS.0, PROGRESS.1)}),
        ];
        let more: std::collections::BTreeMap<String, String> = serde_json::from_value(env)?;
        variables.extend(
            more.iter()
                .map(|(name, value)| json!({"name": name, "value": value})),
        );

        let mut object = gang(name, members, gpus, patch);
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        merge(
            pod,
            json!({
                // Time for the checkpoint after SIGTERM.
                "terminationGracePeriodSeconds": 10,
                "volumes": [{"name": "checkpoints", "hostPath": {"path": checkpoints, "type": "Directory"}},
                            {"name": PROGRESS.0, "emptyDir": {}}],
            }),
        );
        merge(
            &mut pod["containers"][0],
            json!({
                "command": [self.program],
                "env": variables,
                "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"},
                                 {"name": PROGRESS.0, "mountPath": format!("/{}", PROGRESS.0)}],
            }),
        );
        Ok(object)
    }

    /// Progress of the member in a pod.
    pub fn progress(&self, pod: &Pod) -> Result<Progress> {
        let uid = pod.uid().context("uid")?;
        let file = self
            .nodes
            .join(node(pod))
            .join(uid)
            .join("volumes")
            .join(PROGRESS.0)
            .join(PROGRESS.1);
        let text = std::fs::read_to_string(file).context("no progress yet")?;
        let (begun_at, step) = text.trim().split_once(' ').context("two numbers")?;
        Ok(Progress {
            begun_at: begun_at.parse()?,
            step: step.parse()?,
        })
    }

    /// The last checkpoint of a training.
    pub fn checkpoint(&self, name: &str) -> Result<Checkpoint> {
        let file = self.checkpoints.join(name).join("checkpoint");
        let text = std::fs::read_to_string(&file).context("no checkpoint yet")?;
        let mut words = text.split(' ');
        let (occasion, step) = (
            words.next().context("occasion")?,
            words.next().context("step")?,
        );
        let time = Timestamp::try_from(file.metadata()?.modified()?)?.to_string();
        Ok(Checkpoint {
            occasion: occasion.to_owned(),
            step: step.trim().parse()?,
            time,
        })
    }
}
