//! Training progress: the latest report of all processes.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_api::names::annotations;
use lockstep_api::node_agent::MemberProgress;
use lockstep_api::words::took;
use lockstep_api::workload::{ProgressMetric, SlowMember, TrainingProgress};

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodView;

/// Least time between records of progress alone. Agents report about once a minute.
const RECORD_EVERY: TimeDelta = TimeDelta::seconds(30);
/// Intervals between checkpoints that are kept.
const INTERVALS: usize = 5;
/// Most members that are named as slow.
const SLOWEST: usize = 8;

impl Ledger {
    /// Records the latest reported step and checkpoint, together with other changes or once per
    /// [`RECORD_EVERY`]. Without reports, for example after the loss of a node, the last values
    /// stay, except the rate.
    pub fn note_progress(&mut self, facts: &Facts<'_>, recording: bool) {
        let reported = all_reported(facts);
        let last = reported
            .iter()
            .max_by_key(|(_, p)| (p.step_time, p.step, &p.pod_uid))
            .map(|(_, last)| *last);
        let rate = last.and_then(|last| self.rate(last));
        if let Some(recorded) = self
            .progress
            .as_mut()
            .filter(|_| recording && rate.is_none())
        {
            recorded.steps_per_hour = None;
            estimate(recorded);
        }
        let Some(last) = last else {
            return;
        };
        let checkpoint = last_checkpoint(&reported, self.progress.as_ref());
        let before = self.progress.as_ref().map(|recorded| recorded.step_time);
        if self.progress.as_ref().map(|recorded| recorded.step) != Some(last.step)
            && is_to_be_noted(last.step_time, before, recording)
        {
            let metrics = self.metrics(facts, &reported);
            let slowest = slowest(steps_of_domain(facts, &reported, last), last.step, rate);
            let recorded = self.progress.get_or_insert_default();
            (recorded.step, recorded.step_time) = (last.step, last.step_time);
            recorded.total = reported.iter().filter_map(|(_, p)| p.total).max();
            recorded.steps_per_hour = rate;
            recorded.metrics = metrics;
            recorded.slowest = slowest;
            estimate(recorded);
        }
        if let (Some((time, step)), Some(recorded)) = (checkpoint, &mut self.progress)
            && recorded.checkpoint_step != Some(step)
            && is_to_be_noted(time, recorded.checkpoint_time, recording)
        {
            let before = recorded.checkpoint_step.zip(recorded.checkpoint_time);
            if let Some((_, last)) = before.filter(|(saved, last)| step > *saved && time > *last) {
                recorded
                    .checkpoint_intervals
                    .push((time - last).num_seconds());
                let excess = recorded
                    .checkpoint_intervals
                    .len()
                    .saturating_sub(INTERVALS);
                recorded.checkpoint_intervals.drain(..excess);
            }
            (recorded.checkpoint_step, recorded.checkpoint_time) = (Some(step), Some(time));
        }
    }

    /// The rate of a report. An earlier attempt, or one that is about to end, has no rate.
    fn rate(&self, last: &MemberProgress) -> Option<i64> {
        let mut domains = self.domains.values();
        let runs = domains.any(|d| d.attempt == last.attempt && d.incident.is_none());
        last.steps_per_hour.filter(|rate| runs && *rate > 0)
    }

    /// Metrics of the first member by rank that reports any.
    fn metrics(&self, facts: &Facts<'_>, reported: &[Reported<'_>]) -> Vec<ProgressMetric> {
        let membership = self.membership(facts.spec());
        let with_metrics = reported.iter().filter(|(_, p)| !p.metrics.is_empty());
        let first = with_metrics.min_by_key(|(pod, _)| {
            let place = pod
                .identity
                .member
                .as_ref()
                .and_then(|m| membership.place(m));
            (place.map_or(i32::MAX, |place| place.rank), &pod.name)
        });
        first.map_or(Vec::new(), |(_, p)| p.metrics.clone())
    }

    /// Time of the last checkpoint: annotated, recorded, or reported and not recorded yet.
    pub fn last_saved(&self, facts: &Facts<'_>) -> Option<DateTime<Utc>> {
        let noted = self.progress.as_ref();
        let reported = last_checkpoint(&all_reported(facts), noted).map(|(time, _)| time);
        let noted = noted.and_then(|p| p.checkpoint_time);
        annotated_checkpoint(facts).max(noted).max(reported)
    }
}

/// Steps of the members of the restart domain in which this report was made.
fn steps_of_domain(
    facts: &Facts<'_>,
    reported: &[Reported<'_>],
    last: &MemberProgress,
) -> Vec<(String, i64)> {
    let of_last = reported.iter().find(|(_, p)| std::ptr::eq(*p, last));
    let member = of_last.and_then(|(pod, _)| pod.identity.member.as_ref());
    let mut domains = facts.gangs.iter().flat_map(|gang| &gang.domains);
    let domain = member.and_then(|m| domains.find(|d| d.members.contains(m)));
    let members: BTreeSet<&Member> = domain.iter().flat_map(|d| &d.members).collect();
    let current = reported.iter().filter(|(_, p)| p.attempt == last.attempt);
    current
        .filter_map(|(pod, p)| Some((pod.identity.member.as_ref()?, p.step)))
        .filter(|(member, _)| members.contains(member))
        .map(|(member, step)| (member.to_range(), step))
        .collect()
}

/// Members that are behind by more than the steps between two reports of an agent: a minute, and
/// longer for many members. One report can be missing.
fn slowest(steps: Vec<(String, i64)>, last: i64, rate: Option<i64>) -> Vec<SlowMember> {
    let Some(rate) = rate else {
        return Vec::new();
    };
    let members = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    let seconds = 2 * (members / 10).max(60);
    let usual = (rate.saturating_mul(seconds) / 3600).max(1);
    let mut slow: Vec<SlowMember> = steps
        .into_iter()
        .map(|(member, step)| SlowMember {
            behind: last.saturating_sub(step),
            member,
            step,
        })
        .filter(|slow| slow.behind > usual)
        .collect();
    slow.sort_by(|a, b| (b.behind, &a.member).cmp(&(a.behind, &b.member)));
    slow.truncate(SLOWEST);
    slow
}

/// Time left at the recorded rate, and the summary.
fn estimate(recorded: &mut TrainingProgress) {
    let total = recorded.total.filter(|total| *total > 0).map(i128::from);
    let step = i128::from(recorded.step);
    let rate = recorded.steps_per_hour.map(i128::from);
    recorded.seconds_left = total.zip(rate).map(|(total, rate)| {
        let seconds = (total - step).max(0) * 3600 / rate;
        i64::try_from(seconds).unwrap_or(i64::MAX)
    });
    recorded.summary = total.map_or(String::new(), |total| {
        let percent = (step * 100 / total).clamp(0, 100);
        match recorded.seconds_left.and_then(TimeDelta::try_seconds) {
            Some(left) if percent < 100 => format!("{percent}%, {} left", took(left)),
            _ => format!("{percent}%"),
        }
    });
}

/// True after [`RECORD_EVERY`], or for a later time if another change is recorded.
fn is_to_be_noted(time: DateTime<Utc>, recorded: Option<DateTime<Utc>>, recording: bool) -> bool {
    recorded.is_none_or(|k| time >= k + RECORD_EVERY || (recording && time > k))
}

type Reported<'a> = (&'a PodView, &'a MemberProgress);

fn all_reported<'a>(facts: &Facts<'a>) -> Vec<Reported<'a>> {
    let pods = facts.pods();
    pods.filter_map(|pod| Some((pod, facts.progress_of(pod)?)))
        .collect()
}

/// The latest checkpoint. A recorded checkpoint keeps its time: a restarted manager receives the
/// report again, and the node's clock can be ahead.
fn last_checkpoint(
    reported: &[Reported<'_>],
    noted: Option<&TrainingProgress>,
) -> Option<(DateTime<Utc>, i64)> {
    let saved = reported.iter().filter_map(|(_, p)| {
        let noted = noted.filter(|n| n.checkpoint_step == p.checkpoint_step);
        let time = noted.map_or(p.checkpoint_time, |n| n.checkpoint_time)?;
        Some((time, p.checkpoint_step?))
    });
    saved.max()
}

/// Time of the checkpoint in the annotation of the workload, unless it is in the future.
fn annotated_checkpoint(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let text = facts.view.annotation(annotations::LAST_CHECKPOINT)?;
    let at = DateTime::parse_from_rfc3339(text).ok()?.with_timezone(&Utc);
    (at <= facts.now).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_behind_by_more_than_two_reports_are_named_the_slowest_first() {
        let steps = |behind: &[i64]| {
            let each = behind.iter().enumerate();
            each.map(|(n, behind)| (format!("g/0/{n}"), 1000 - behind))
                .collect::<Vec<_>>()
        };
        let named = |behind: &[i64], rate| {
            let slow = slowest(steps(behind), 1000, rate);
            let each = slow.into_iter();
            each.map(|s| (s.member, s.step, s.behind))
                .collect::<Vec<_>>()
        };
        // 60 steps a minute.
        let expected = [
            ("g/0/3".to_owned(), 800, 200),
            ("g/0/1".to_owned(), 879, 121),
        ];
        assert_eq!(named(&[0, 121, 120, 200], Some(3600)), expected);
        assert_eq!(named(&[0, 200], None), []);
        assert_eq!(named(&[200; 20], Some(3600)).len(), SLOWEST);
    }
}
