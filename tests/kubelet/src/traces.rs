//! Recorded traces: the steps of a scenario on a real cluster, and the watch events of its pods. The
//! files and their README are in `traces/`; `make record-traces` records them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One scenario. Its first line has all fields but `lines`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Name of the scenario and of its file.
    #[serde(rename = "scenario")]
    pub name: String,
    /// Description of the scenario.
    pub about: String,
    /// Version of the kubelet. Empty until the scenario is recorded.
    #[serde(default)]
    pub kubernetes: String,
    /// Version of the runtime. Empty until the scenario is recorded.
    #[serde(default)]
    pub containerd: String,
    /// Steps and watch events, in the order of their time. The last line is [`Step::End`].
    #[serde(skip)]
    pub lines: Vec<Line>,
}

/// A step or a watch event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds since the start.
    pub ms: i64,
    /// The rest of the line.
    #[serde(flatten)]
    pub what: What,
}

/// Content of a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// The recorder did this.
    Step(Step),
    /// The API server reported this.
    Seen(Box<Seen>),
}

/// What the recorder does to the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Creates an object in the namespace of the scenario.
    Create(Box<Value>),
    /// Runs kubectl in the namespace of the scenario, with arguments without blanks.
    Kubectl(String),
    /// Evicts a pod through the eviction API.
    Evict(String),
    /// Runs a shell command in a container once the container runs.
    Exec {
        /// Name of the pod.
        pod: String,
        /// Name of the container.
        container: String,
        /// The command.
        command: String,
    },
    /// Sends SIGKILL to a container through the runtime once the container runs.
    Kill {
        /// Name of the pod.
        pod: String,
        /// Name of the container.
        container: String,
    },
    /// Sends SIGSTOP to a program of a node.
    Pause(Program),
    /// Sends SIGCONT to a program of a node.
    Resume(Program),
    /// Kills a program of a node and prevents its start.
    Hold(Program),
    /// Permits the start of a program that is held.
    Release(Program),
    /// Reboots a node.
    Reboot(String),
    /// Ends the recording.
    End,
}

/// A program of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Name of the node.
    pub node: String,
    /// `kubelet` or `containerd`.
    pub program: String,
}

/// A watch event of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub watch: String,
    /// Name of the pod.
    pub pod: String,
    /// `spec.nodeName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// `metadata.deletionTimestamp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<DateTime<Utc>>,
    /// `metadata.deletionGracePeriodSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// The status.
    pub status: Value,
}

impl Step {
    /// Name and spec of the pod that the step creates.
    pub fn pod(&self) -> Option<(String, PodSpec)> {
        let Self::Create(object) = self else {
            return None;
        };
        let pod: Pod = serde_json::from_value(Value::clone(object)).ok()?;
        Some((pod.metadata.name?, pod.spec?))
    }
}

impl Trace {
    /// Every scenario of `traces/`, by name.
    pub fn all() -> Result<Vec<Self>> {
        let files: Vec<_> = fs::read_dir(folder())?.collect::<Result<_, _>>()?;
        let mut paths: Vec<_> = files.iter().map(fs::DirEntry::path).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
        paths.sort();
        let read = |path: &PathBuf| Self::read(path).with_context(|| path.display().to_string());
        paths.iter().map(read).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let mut lines = text.lines();
        let mut trace: Self = serde_json::from_str(lines.next().context("an empty file")?)?;
        ensure!(
            path.file_stem().is_some_and(|name| *name == *trace.name),
            "the name of the file is not {}",
            trace.name
        );
        trace.lines = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        let last = trace.lines.last().map(|line| &line.what);
        ensure!(
            matches!(last, Some(What::Step(Step::End))),
            "the last line is not the step \"end\""
        );
        Ok(trace)
    }

    /// Writes the file of the scenario.
    pub fn write(&self) -> Result<()> {
        fs::write(self.file(), self.text()?)?;
        Ok(())
    }

    fn file(&self) -> PathBuf {
        folder().join(format!("{}.jsonl", self.name))
    }

    fn text(&self) -> Result<String> {
        let mut text = serde_json::to_string(self)? + "\n";
        for line in &self.lines {
            writeln!(text, "{}", serde_json::to_string(line)?)?;
        }
        Ok(text)
    }

    /// The steps, with their times.
    pub fn steps(&self) -> impl Iterator<Item = (i64, &Step)> {
        self.lines.iter().filter_map(|l| match &l.what {
            What::Step(step) => Some((l.ms, step)),
            What::Seen(_) => None,
        })
    }

    /// Names and specs of the pods, in the order of their creation.
    pub fn pods(&self) -> impl Iterator<Item = (String, PodSpec)> {
        self.steps().filter_map(|(_, step)| step.pod())
    }

    /// The watch events of a pod, with their times.
    pub fn seen<'t>(&'t self, pod: &'t str) -> impl Iterator<Item = (i64, &'t Seen)> {
        self.lines.iter().filter_map(move |l| match &l.what {
            What::Seen(seen) if seen.pod == pod => Some((l.ms, &**seen)),
            What::Step(_) | What::Seen(_) => None,
        })
    }

    /// The earliest time of day of the start at which no time in a status lies in the future. The
    /// times in a status are cut to full seconds.
    pub fn origin(&self) -> DateTime<Utc> {
        let mut origin = DateTime::UNIX_EPOCH;
        for line in &self.lines {
            if let What::Seen(seen) = &line.what {
                latest_time(&seen.status, &mut |t| {
                    origin = origin.max(t - TimeDelta::milliseconds(line.ms));
                });
            }
        }
        origin
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}

fn latest_time(value: &Value, found: &mut impl FnMut(DateTime<Utc>)) {
    match value {
        Value::String(text) => {
            if let Ok(time) = text.parse() {
                found(time);
            }
        }
        Value::Array(all) => all.iter().for_each(|v| latest_time(v, found)),
        Value::Object(all) => all.values().for_each(|v| latest_time(v, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_written_as_it_was_read() {
        for trace in Trace::all().unwrap() {
            let text = fs::read_to_string(trace.file()).unwrap();
            assert_eq!(trace.text().unwrap(), text, "{}", trace.name);
        }
    }
}
