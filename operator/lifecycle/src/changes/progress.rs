//! Training progress: the latest report of all processes.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::names::annotations;
use lockstep_api::node_agent::MemberProgress;
use lockstep_api::workload::TrainingProgress;

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodView;

/// Least time between records of progress alone. Agents report about once a minute.
const RECORD_EVERY: TimeDelta = TimeDelta::seconds(30);

impl Ledger {
    /// Records the latest reported step and checkpoint, together with other changes or once per
    /// [`RECORD_EVERY`]. Without reports, for example after the loss of a node, the last values
    /// stay.
    pub fn note_progress(&mut self, facts: &Facts<'_>, recording: bool) {
        let reported = all_reported(facts);
        let Some(last) = reported
            .iter()
            .max_by_key(|p| (p.step_time, p.step, &p.pod_uid))
        else {
            return;
        };
        let step_time = last.step_time;
        let checkpoint = last_checkpoint(&reported, self.progress.as_ref());
        let recorded = self.progress.get_or_insert(TrainingProgress {
            step: last.step,
            step_time,
            checkpoint_step: None,
            checkpoint_time: None,
        });
        if last.step != recorded.step
            && is_to_be_noted(step_time, Some(recorded.step_time), recording)
        {
            (recorded.step, recorded.step_time) = (last.step, step_time);
        }
        if let Some((time, step)) = checkpoint
            && recorded.checkpoint_step != Some(step)
            && is_to_be_noted(time, recorded.checkpoint_time, recording)
        {
            (recorded.checkpoint_step, recorded.checkpoint_time) = (Some(step), Some(time));
        }
    }

    /// Includes unrecorded checkpoints.
    pub(super) fn last_saved(&self, facts: &Facts<'_>) -> Option<DateTime<Utc>> {
        last_checkpoint(&all_reported(facts), self.progress.as_ref()).map(|(time, _)| time)
    }
}

/// True after [`RECORD_EVERY`], or for a later time if another change is recorded.
fn is_to_be_noted(time: DateTime<Utc>, recorded: Option<DateTime<Utc>>, recording: bool) -> bool {
    recorded.is_none_or(|k| time >= k + RECORD_EVERY || (recording && time > k))
}

fn all_reported<'a>(facts: &Facts<'a>) -> Vec<&'a MemberProgress> {
    facts.pods().filter_map(|p| reported(facts, p)).collect()
}

fn reported<'a>(facts: &Facts<'a>, pod: &PodView) -> Option<&'a MemberProgress> {
    let agent = facts.view.agents().get(pod.node.as_deref()?)?;
    let mut reported = agent.status.progress.iter();
    reported.find(|p| pod.uid == *p.pod_uid)
}

/// The latest checkpoint. A recorded checkpoint keeps its time: a restarted manager receives the
/// report again, and the node's clock can be ahead.
fn last_checkpoint(
    reported: &[&MemberProgress],
    noted: Option<&TrainingProgress>,
) -> Option<(DateTime<Utc>, i64)> {
    let saved = reported.iter().filter_map(|p| {
        let noted = noted.filter(|n| n.checkpoint_step == p.checkpoint_step);
        let time = noted.map_or(p.checkpoint_time, |n| n.checkpoint_time)?;
        Some((time, p.checkpoint_step?))
    });
    saved.max()
}

/// Time of the checkpoint in the annotation of the workload, unless it is in the future.
pub(super) fn annotated_checkpoint(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let text = facts.view.annotation(annotations::LAST_CHECKPOINT)?;
    let at = DateTime::parse_from_rfc3339(text).ok()?.with_timezone(&Utc);
    (at <= facts.now).then_some(at)
}
