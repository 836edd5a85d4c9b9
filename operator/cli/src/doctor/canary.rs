//! A gang of one member that shows whether the installation places and starts workloads.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::{is_true, types};
use lockstep_api::words::took;
use lockstep_api::workload::Phase;
use serde_json::json;

use super::{Check, DOCTOR, check, fail, ok, warn};
use crate::objects::node;

/// Time that the manager has beyond the timeout before it ends a canary that was not deleted.
const MARGIN: Duration = Duration::from_mins(1);
const STAGES: [&str; 4] = ["accepted", "placed", "bound", "started"];

/// What was seen of a canary.
#[derive(Clone, Debug)]
pub struct Canary {
    created: DateTime<Utc>,
    /// Times of the stages.
    reached: [Option<DateTime<Utc>>; 4],
    node: Option<String>,
    /// Reason and message of its status.
    status: String,
    failed: bool,
    /// Why it was not followed to the end.
    pub interrupted: Option<String>,
    /// Why it still exists.
    pub left: Option<String>,
}

/// The workload. If it is not deleted, the manager ends and deletes it after a margin.
pub fn manifest(namespace: &str, image: &str, timeout: Duration) -> Result<TrainingWorkload> {
    let seconds = (timeout + MARGIN).as_secs();
    let amounts = json!({"cpu": "10m", "memory": "16Mi"});
    // Namespaces with the strictest pod security admit it.
    let security = json!({"runAsNonRoot": true, "runAsUser": 65535, "allowPrivilegeEscalation": false,
        "seccompProfile": {"type": "RuntimeDefault"}, "capabilities": {"drop": ["ALL"]}});
    let container = json!({"name": "pause", "image": image, "securityContext": security,
        "resources": {"requests": amounts, "limits": amounts}});
    let template = json!({"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}});
    let workload = json!({"metadata": {"generateName": "lockstep-canary-", "namespace": namespace}, "spec": {
        "groups": [{"name": "canary", "template": template}],
        "scheduling": {"timeoutSeconds": seconds, "onTimeout": "Fail"},
        "activeDeadlineSeconds": seconds, "ttlSecondsAfterFinished": 0}});
    Ok(serde_json::from_value(workload)?)
}

impl Canary {
    pub fn new(created: DateTime<Utc>) -> Self {
        Self {
            created,
            reached: [None; 4],
            node: None,
            status: String::new(),
            failed: false,
            interrupted: None,
            left: None,
        }
    }

    /// Notes a state of the workload. Pods: `None` if they may not be read.
    pub fn observe(
        &mut self,
        workload: &TrainingWorkload,
        pods: Option<&[Pod]>,
        now: DateTime<Utc>,
    ) {
        let Some(status) = &workload.status else {
            return;
        };
        let pods = pods.unwrap_or_default();
        let bound = pods.iter().find_map(node);
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            matches!(phase, Some("Running" | "Succeeded"))
        };
        let started = matches!(status.phase, Some(Phase::Running | Phase::Succeeded))
            || pods.iter().any(runs);
        let placed = is_true(&status.conditions, types::ADMITTED);
        let stages = [true, placed, bound.is_some(), started];
        for (at, reached) in self.reached.iter_mut().enumerate() {
            if stages[at..].contains(&true) {
                reached.get_or_insert(now);
            }
        }
        self.node = bound.map(str::to_owned).or(self.node.take());
        self.failed = matches!(status.phase, Some(Phase::Failed | Phase::Stalled));
        self.status = format!("{}: {}", status.reason, status.message);
    }

    /// True if it has started, or never will.
    pub fn has_ended(&self) -> bool {
        self.failed || self.reached[3].is_some()
    }

    pub fn check(&self, timeout: Duration) -> Check {
        let stages = STAGES.iter().zip(self.reached);
        let reached = stages
            .filter_map(|(stage, at)| Some(format!("{stage} after {}", took(at? - self.created))));
        let mut parts: Vec<String> = reached.collect();
        if let (Some(node), Some(_), Some(last)) = (&self.node, self.reached[2], parts.last_mut()) {
            *last = format!("{last} on node {node}");
        }
        let within = timeout.as_secs();
        let finding = match (&self.interrupted, self.reached) {
            (_, [.., Some(_)]) => ok(""),
            (Some(why), _) => {
                parts.push(why.clone());
                warn("")
            }
            (None, [None, ..]) => {
                parts.push(format!("no manager has accepted it within {within}s"));
                fail("")
            }
            (None, [_, placed, ..]) => {
                let missing = if placed.is_none() {
                    "placed"
                } else {
                    "started"
                };
                let within = if self.failed {
                    String::new()
                } else {
                    format!(" within {within}s")
                };
                parts.push(format!("not {missing}{within}: {}", self.status));
                // A full cluster is no fault of the installation.
                if placed.is_none() && !self.failed {
                    warn("")
                } else {
                    fail("")
                }
            }
        };
        let finding = match &self.left {
            None => {
                parts.push("removed".to_owned());
                finding
            }
            Some(why) => {
                parts.push(why.clone());
                fail("")
            }
        };
        check("canary", (finding.0, parts.join("; ")), DOCTOR)
    }
}

/// With the reason why the API server did not create the workload.
pub fn not_created(why: &str) -> Check {
    check("canary", fail(format!("not created: {why}")), DOCTOR)
}

/// Without the right to create a workload.
pub fn not_allowed(remedy: &str) -> Check {
    check(
        "canary",
        warn(format!(
            "skipped: you may not create trainingworkloads; {remedy}"
        )),
        DOCTOR,
    )
}
