//! For whom the scheduler loop seeks room: an elastic gang starts with what it gets, and grows later.
//!
//! Another world costs a restart. So a gang takes what is free when it is placed, keeps to that while it starts and while an
//! incident is handled, and looks for more only when it has run well for a while; it never evicts anybody for it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_api::workload::{DomainStatus, Group, TrainingWorkloadSpec, TrainingWorkloadStatus};

use crate::gangs::Gang;
use crate::ranks::World;

/// For whom a gang seeks room now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seekers {
    /// None: all of its members.
    pub only: Option<BTreeSet<Member>>,
    /// Whether the gang runs without those that it lacks: they take free room and nobody's else.
    pub growing: bool,
    /// When it may grow, if it only has to wait for that.
    pub grows_at: Option<DateTime<Utc>>,
}

/// For whom a gang seeks room that has these seats; None while it has no placement. It grows once it has run for
/// `grow_after` without incident, or as soon as it can where its user has raised what it needs.
pub fn seekers(
    gang: &Gang,
    spec: &TrainingWorkloadSpec,
    status: &TrainingWorkloadStatus,
    seats: Option<&BTreeMap<Member, String>>,
    now: DateTime<Utc>,
    grow_after: TimeDelta,
) -> Seekers {
    let Some(seats) = seats.filter(|_| !gang.basic) else { return Seekers::default() };
    let done = status.completed(&spec.groups);
    let seated = |m: &Member| seats.contains_key(m) || done.contains(m);
    let world = World::of(spec, status);
    let domains = || domains(gang, status, &world);
    if domains().all(|d| d.incident.is_none() && d.healthy_since.is_none()) {
        let enough = gang.members().filter(|m| seated(m)).count() >= gang.min_count.max(0) as usize;
        return if enough { Seekers::only(gang, seated) } else { Seekers::default() };
    }
    let together = Seekers::only(gang, |m| world.contains(m) || seated(m));
    let since: Option<Vec<DateTime<Utc>>> =
        domains().map(|d| d.healthy_since.filter(|_| d.incident.is_none())).collect();
    let Some(since) = since.and_then(|all| all.into_iter().max()) else { return together };
    // Members that have succeeded would have to start over.
    let finishing = gang.members().any(|m| done.contains(m));
    // Below its minimum is only whose replicas or minCount were raised: somebody waits for it.
    let short = gang.members().filter(|m| world.contains(m)).count() < gang.min_count.max(0) as usize;
    let at = if short { since } else { since + grow_after };
    match together {
        Seekers { only: None, .. } => Seekers { growing: true, ..together },
        _ if finishing => together,
        _ if now >= at => Seekers { growing: true, ..Seekers::default() },
        _ => Seekers { growing: true, grows_at: Some(at), ..together },
    }
}

/// Members that need no room any more: they have succeeded, or the rest of their group has without them.
pub fn finished(spec: &TrainingWorkloadSpec, status: &TrainingWorkloadStatus) -> BTreeSet<Member> {
    let mut out = status.completed(&spec.groups);
    let world = World::of(spec, status);
    let partial = spec.groups.iter().filter(|g| world.size_of(&g.name) < g.members());
    let over: Vec<&Group> = partial.filter(|g| world.complete(&g.name, &out)).collect();
    for group in over {
        let all = (0..group.replicas).flat_map(|r| (0..group.size).map(move |i| (r, i)));
        out.extend(all.map(|(r, i)| Member::new(group.name.as_str(), r, i)));
    }
    out
}

impl Seekers {
    /// Whether room is sought for a member.
    pub fn contains(&self, member: &Member) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(member))
    }

    fn only(gang: &Gang, sought: impl Fn(&Member) -> bool) -> Self {
        let all = gang.members().all(&sought);
        let only = (!all).then(|| gang.members().filter(|m| sought(m)).cloned().collect());
        Self { only, ..Self::default() }
    }
}

/// The restart domains of a gang of which anybody runs.
fn domains<'s>(
    gang: &'s Gang,
    status: &'s TrainingWorkloadStatus,
    world: &'s World<'_>,
) -> impl Iterator<Item = &'s DomainStatus> {
    let in_use = gang.domains.iter().filter(|d| d.members.iter().any(|m| world.contains(m)));
    in_use.filter_map(|d| status.domains.iter().find(|s| s.key == d.key))
}
