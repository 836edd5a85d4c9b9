//! Preemptions as the scheduler loop records them.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Intent to preempt. It is persisted before the first eviction, and validated again at each
/// resumption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preemption {
    /// Id of the intent. The message of the victims' condition DisruptionTarget contains it.
    pub id: String,
    /// UID of the preemptor's pod group. An intent with another UID is ignored.
    #[serde(rename = "preemptorUID")]
    pub preemptor_uid: String,
    /// Time of the decision.
    #[serde(default)]
    pub decided_at: DateTime<Utc>,
    /// Id of the placement that needs the capacity.
    pub placement: String,
    /// Victims of the preemption.
    pub victims: Vec<Victim>,
    /// Why these victims, for people.
    #[serde(default)]
    pub explanation: String,
    /// Cost of the victims and of follow-on evictions in accelerator-seconds: lost work, checkpoints
    /// on request and restarts.
    #[serde(default)]
    pub cost: i64,
    /// Work of the victims since their last checkpoints, in accelerator-seconds. A part of `cost`.
    /// Without gangs that are expected to save a checkpoint on request.
    #[serde(default)]
    pub lost_work: i64,
    /// Lower bound for the cost of any set of victims that frees enough capacity, in
    /// accelerator-seconds.
    #[serde(default)]
    pub at_least: i64,
    /// True if no cheaper set of victims frees enough capacity.
    #[serde(default)]
    pub proven: bool,
    /// Next best set of victims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_best: Option<NextBest>,
    /// Progress of binding once no victim holds a node of an unbound member. Absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingProgress>,
}

impl Preemption {
    /// True if a victim has been evicted. Other terminations do not count.
    pub fn begun(&self) -> bool {
        let mut victims = self.victims.iter();
        victims.any(|v| v.eviction_requested_at.is_some())
    }

    /// Number of victims from which checkpoints are requested, and the end of the wait for them.
    /// `None` after the first eviction.
    pub fn checkpoint_wait(&self) -> Option<(usize, DateTime<Utc>)> {
        let deadlines = || self.victims.iter().filter_map(|v| v.checkpoint_deadline);
        let end = deadlines().max().filter(|_| !self.begun())?;
        Some((deadlines().count(), end))
    }
}

/// Number of members bound to their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingProgress {
    /// Highest observed number of members that were bound or had finished at one time.
    pub bound: i32,
    /// Time at which this number was first reached, or at which the victims had left the nodes. If
    /// no further member is bound and none is refused within 15 min, the preemption is aborted.
    pub since: DateTime<Utc>,
}

/// The next best set of victims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextBest {
    /// Cost in accelerator-seconds.
    pub cost: i64,
}

/// The gang for which another gang is preempted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preemptor {
    /// Namespace of its workload.
    pub namespace: String,
    /// Name of its workload.
    pub name: String,
    /// Priority of the gang.
    pub priority: i32,
}

/// A unit that is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// `PodGroup` for a gang, `Pod` for a single pod.
    pub kind: String,
    /// Namespace of the unit.
    pub namespace: String,
    /// Name of the unit.
    pub name: String,
    /// UID of the unit. An object of the same name with another UID is not evicted.
    pub uid: String,
    /// Priority of the unit.
    #[serde(default)]
    pub priority: i32,
    /// Number of evicted pods.
    #[serde(default)]
    pub pods: i32,
    /// Cost of its eviction in accelerator-seconds: lost work or a checkpoint, and the restart.
    #[serde(default)]
    pub cost: i64,
    /// Its work since the last checkpoint, in accelerator-seconds. A part of `cost`. 0 if it is
    /// expected to save a checkpoint on request.
    #[serde(default)]
    pub lost_work: i64,
    /// Workload of another controller to which a single pod belongs and which is evicted as a
    /// whole: all its pods are victims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// End of the wait for its checkpoint. Absent: none is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_deadline: Option<DateTime<Utc>>,
    /// Time of the first eviction request. A single pod that still exists afterwards is protected
    /// by its disruption budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_requested_at: Option<DateTime<Utc>>,
}

/// Request for a checkpoint to a gang that is about to be preempted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreemptionRequest {
    /// Id of the request: that of the placement which needs the capacity.
    pub id: String,
    /// End of the wait for the outcome.
    pub deadline: DateTime<Utc>,
    /// `namespace/name` of the PodGroup that needs the capacity.
    pub preemptor: String,
    /// True if the next regular checkpoint is awaited, because the gang supports no request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watch: bool,
}
