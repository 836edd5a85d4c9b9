//! Recorded traces: what a real cluster showed of a pod, in the order in which it showed it. The
//! files and their README are in `traces/`.

#![expect(
    clippy::missing_panics_doc,
    reason = "a file that cannot be read fails the test"
)]

use std::fs;
use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use serde::Deserialize;
use serde_json::Value;

/// One scenario.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Name, as of the file.
    pub name: String,
    /// What was done, for people.
    pub about: String,
    /// Version of Kubernetes.
    pub kubernetes: String,
    /// Everything else, in the order of arrival.
    pub lines: Vec<Line>,
}

/// Something that was done or seen.
#[derive(Clone, Debug)]
pub struct Line {
    /// Milliseconds since the start.
    pub ms: i64,
    /// What it was.
    pub what: What,
}

/// What was done or seen.
#[derive(Clone, Debug)]
pub enum What {
    /// Something was done, in words.
    Step(String),
    /// A pod was created with this spec.
    Created(String, Box<PodSpec>),
    /// A watch event of a pod.
    Seen(Box<Seen>),
    /// An event object, by its reason: the last thing recorded, where nothing came of it.
    Event(String),
}

/// A watch event of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub watch: String,
    /// Name of the pod.
    pub pod: String,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `metadata.deletionTimestamp`.
    pub deletion_timestamp: Option<DateTime<Utc>>,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace_period_seconds: Option<i64>,
    /// The whole status.
    pub status: Value,
}

#[derive(Deserialize)]
struct Head {
    scenario: String,
    about: String,
    kubernetes: String,
}

impl Trace {
    /// Every recorded scenario, by name.
    pub fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        let files = fs::read_dir(folder).expect("the folder of the traces");
        let mut paths: Vec<_> = files.map(|f| f.expect("a file").path()).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
        paths.sort();
        paths.iter().map(|p| Self::read(p)).collect()
    }

    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a trace");
        let mut lines = text.lines();
        let head: Head = serde_json::from_str(lines.next().unwrap_or_default())
            .expect("the first line names the scenario");
        Self {
            name: head.scenario,
            about: head.about,
            kubernetes: head.kubernetes,
            lines: lines.map(line).collect(),
        }
    }

    /// Names of the pods that were created, in order, with their specs.
    pub fn pods(&self) -> impl Iterator<Item = (&str, &PodSpec)> {
        self.lines.iter().filter_map(|l| match &l.what {
            What::Created(name, spec) => Some((name.as_str(), &**spec)),
            What::Step(_) | What::Seen(_) | What::Event(_) => None,
        })
    }

    /// What was seen of a pod, with the time.
    pub fn seen<'t>(&'t self, pod: &'t str) -> impl Iterator<Item = (i64, &'t Seen)> {
        self.lines.iter().filter_map(move |l| match &l.what {
            What::Seen(seen) if seen.pod == pod => Some((l.ms, &**seen)),
            What::Step(_) | What::Created(..) | What::Seen(_) | What::Event(_) => None,
        })
    }

    /// The time of day at which the recording began: the earliest at which no time in a status lies
    /// in the future. They are cut to full seconds.
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

fn line(text: &str) -> Line {
    let mut value: Value = serde_json::from_str(text).expect("a line of JSON");
    let ms = value["ms"].as_i64().expect("a time");
    let what = if let Some(step) = value["step"].as_str() {
        What::Step(step.to_owned())
    } else if let Some(reason) = value["event"].as_str() {
        What::Event(reason.to_owned())
    } else if let Some(spec) = value["spec"].as_object_mut() {
        let (name, spec) = std::mem::take(spec).into_iter().next().expect("a pod");
        What::Created(name, serde_json::from_value(spec).expect("a pod spec"))
    } else {
        What::Seen(serde_json::from_value(value).expect("a watch event"))
    };
    Line { ms, what }
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
