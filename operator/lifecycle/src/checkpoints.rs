//! What is known of a request for a checkpoint: answers of members, and ends that answer it.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::node_agent::{CheckpointReply, capabilities};
use lockstep_api::workload::{
    CheckpointOccasion, CheckpointOnRequest, CheckpointOutcome, CheckpointRequest,
    CheckpointSignal, ends_on_request,
};

use crate::facts::{Facts, MemberObservation};
use crate::ledger::{DomainLedger, Ledger};
use crate::pods::ContainerView;

/// What an evicted pod needs after its answer.
pub(crate) const BEFORE_KILL: TimeDelta = TimeDelta::seconds(10);

/// Most seconds by which the clock of a node is expected to be behind.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(60);

/// Answer of a member to the request of its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberReply {
    /// None yet.
    Open,
    Saved(i64),
    /// Its process has ended.
    Ended,
    Unsupported,
}

impl<'a> Facts<'a> {
    pub fn checkpoint_policy(&self) -> Option<&'a CheckpointOnRequest> {
        self.spec().checkpoint.as_ref().map(|c| &c.on_request)
    }

    /// Signal by which the running processes of a domain are asked. A change of the spec is for later
    /// processes.
    fn request_signal(&self, domain: &DomainKey) -> Option<CheckpointSignal> {
        self.order(domain)?.checkpoint.as_ref()?.signal
    }

    /// True if the stop for this reason waits for a checkpoint.
    pub fn asks_before(&self, reason: CheckpointOccasion) -> bool {
        let policy = self.checkpoint_policy();
        policy.is_some_and(|p| p.occasions.contains(&reason))
    }
}

impl Ledger {
    /// Last step that a member has reported.
    fn last_step(&self, facts: &Facts<'_>) -> Option<i64> {
        let recorded = self.progress.as_ref().map(|p| p.step);
        facts.last_reported().0.max(recorded)
    }

    pub fn set_request(&mut self, key: &DomainKey, request: CheckpointRequest) {
        if let Some(entry) = self.domains.get_mut(key) {
            entry.request = Some(request);
        }
    }

    /// Records the outcome of a domain's open request.
    pub fn close_request(
        &mut self,
        facts: &Facts<'_>,
        key: &DomainKey,
        outcome: CheckpointOutcome,
        saved: Option<i64>,
    ) {
        let last = self.last_step(facts);
        let recorded = self.progress.as_ref().and_then(|p| p.checkpoint_step);
        let kept = saved.or(facts.last_reported().1.max(recorded));
        let request = self.domains.get_mut(key).and_then(|d| d.request.as_mut());
        if let Some(request) = request.filter(|r| r.is_open()) {
            let took = (facts.now - request.requested_at).num_milliseconds();
            (request.outcome, request.deadline) = (Some(outcome), None);
            (request.millis, request.saved_step) = (Some(took.max(0)), saved);
            request.steps_lost = last.zip(kept).map(|(last, kept)| (last - kept).max(0));
        }
    }

    /// True while a stop waits for the answers to requests.
    pub fn awaits_reply(&self) -> bool {
        self.domains.values().any(|d| d.open_request().is_some())
    }

    /// True if a running domain has answered the request with this id.
    pub fn has_reply(&self, id: &str) -> bool {
        let requests = self.domains.values().filter_map(|d| {
            let request = d.request.as_ref()?;
            (request.id == id && request.attempt == d.attempt).then_some(request)
        });
        let mut outcomes = requests.filter_map(|r| r.outcome);
        outcomes.any(|o| o != CheckpointOutcome::Withdrawn)
    }

    pub fn awaits_reply_of(&self, gang: &Gang) -> bool {
        let mut entries = gang.domains.iter().filter_map(|d| self.domain(&d.key));
        entries.any(|d| d.open_request().is_some())
    }
}

impl DomainLedger {
    pub fn open_request(&self) -> Option<&CheckpointRequest> {
        self.request.as_ref().filter(|r| r.is_open())
    }

    /// True while the loss of a member waits for the answers to a request. A new pod would hide it.
    pub fn awaits_reply_for_loss(&self, member: &Member) -> bool {
        let replacement = self.replacement.as_ref();
        let open = self.open_request();
        self.under_way()
            && open.is_some_and(|r| !r.watch && r.attempt == self.attempt)
            && !replacement.is_some_and(|r| r.members.contains(member))
    }

    /// The request to the processes of this attempt that an end at this time can answer: it is open,
    /// they have ended for it, they were asked by SIGTERM, which cannot be taken back, or the outcome
    /// is younger than the time that the spec gives them to answer.
    pub fn request_to_end(
        &self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        at: DateTime<Utc>,
    ) -> Option<&CheckpointRequest> {
        // A node whose clock is ahead.
        let at = at.min(facts.now);
        let by_sigterm = || facts.request_signal(domain) == Some(CheckpointSignal::Term);
        let follows = |r: &CheckpointRequest| {
            let seconds = facts.checkpoint_policy().map_or(0, |p| p.timeout_seconds);
            let outcome = r.requested_at + TimeDelta::milliseconds(r.millis.unwrap_or_default());
            at <= outcome + TimeDelta::seconds(seconds)
        };
        let request = self.request.as_ref();
        request.filter(|r| {
            r.attempt == self.attempt
                && !r.watch
                && at + CLOCKS_DIFFER >= r.requested_at
                && match r.outcome {
                    None | Some(CheckpointOutcome::Ended) => true,
                    Some(CheckpointOutcome::Unsupported) => false,
                    Some(
                        CheckpointOutcome::Saved
                        | CheckpointOutcome::TimedOut
                        | CheckpointOutcome::Withdrawn,
                    ) => by_sigterm() || follows(r),
                }
        })
    }

    /// True if an end of a process with this code answers the request of this attempt.
    pub fn is_reply(
        &self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        code: i32,
        at: DateTime<Utc>,
    ) -> bool {
        let replies = ends_on_request(code, facts.request_signal(domain));
        replies && self.request_to_end(facts, domain, at).is_some()
    }
}

impl MemberObservation<'_> {
    /// True if the member's supervisor can be asked for a checkpoint.
    pub fn can_be_asked(&self) -> bool {
        let node = self.pod.node.as_deref();
        let agent = node.and_then(|n| self.facts.agent(n));
        self.pod.is_supervised() && agent.is_some_and(|a| a.status.has(capabilities::CHECKPOINT))
    }

    pub fn checkpoint_reply(&self, domain: &DomainLedger, id: &str) -> MemberReply {
        let agent = self.pod.node.as_deref().and_then(|n| self.facts.agent(n));
        let mut replies = agent.into_iter().flat_map(|a| &a.status.checkpoints);
        let own = |a: &&CheckpointReply| self.pod.uid == *a.pod_uid && a.id == id;
        match replies.find(own).map(|a| a.saved) {
            Some(Some(step)) => MemberReply::Saved(step),
            _ if self.end_at(domain.attempt).is_some() || self.pod.terminal() => MemberReply::Ended,
            Some(None) => MemberReply::Unsupported,
            None if agent.is_some() && !self.can_be_asked() => MemberReply::Unsupported,
            None => MemberReply::Open,
        }
    }

    /// Exit code of the training process of this attempt, and the time of its end.
    pub fn end_at(&self, attempt: i64) -> Option<(i32, DateTime<Utc>)> {
        let reports = self.training_reports().filter(|r| r.attempt == attempt);
        let reported = reports.max_by_key(|r| r.restarts);
        let shown = self.trainer().and_then(ContainerView::terminated);
        let shown = shown.filter(|_| !self.pod.is_supervised() || self.pod.terminal());
        let shown = shown.map(|t| (t.exit_code, t.finished_at.unwrap_or(self.facts.now)));
        reported.map(|r| (r.exit_code, r.time)).or(shown)
    }
}

/// Id of the request before the workload ends at this time by its deadline.
pub(crate) fn deadline_id(end: DateTime<Utc>) -> String {
    occasion_id(CheckpointOccasion::Deadline, &end.timestamp().to_string())
}

/// Id of a request for a reason other than a preemption or a user.
pub(crate) fn occasion_id(reason: CheckpointOccasion, key: &str) -> String {
    format!("{}-{key}", reason.as_str().to_lowercase())
}

/// True if all these members have ended with 0, and their last step is that of the whole training.
pub(crate) fn has_finished<'m>(
    facts: &Facts<'_>,
    ledger: &Ledger,
    domain: &DomainLedger,
    mut members: impl Iterator<Item = &'m Member> + Clone,
) -> bool {
    let recorded = ledger.progress.as_ref();
    let total = recorded.and_then(|p| p.total);
    let pods = members.clone().filter_map(|m| facts.current(domain, m));
    let reported = pods.filter_map(|pod| facts.progress_of(pod));
    let own = reported.filter(|p| p.attempt == domain.attempt);
    // The recorded step can be that of another domain.
    let recorded = recorded.filter(|_| ledger.domains.len() == 1);
    let last = own.map(|p| p.step).max().max(recorded.map(|p| p.step));
    let ended = |m: &Member| {
        let pod = facts.current(domain, m);
        let end = pod.and_then(|p| facts.observe(m, p).end_at(domain.attempt));
        ledger.completed.contains(m) || end.is_some_and(|(code, _)| code == 0)
    };
    total.zip(last).is_some_and(|(total, step)| step >= total) && members.all(ended)
}
