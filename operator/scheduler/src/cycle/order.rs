use lockstep_engine::queue::QueuePosition;

use crate::capacity::namespace_usage::NamespaceUsage;
use crate::capacity::reservations::Position;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;
use crate::memory::equivalence_class::Request;

#[derive(Clone, Debug)]
pub(super) struct Queueing {
    pub position: Position,
    pub at: usize,
    pub request: Request,
}

/// Gangs that request capacity, head of the queue last. Ordered by priority, gangs with nodes or
/// reservations, share of the namespace, queue time, UID; growth comes last. `reserved`: gangs with
/// reservations.
pub(super) fn order(
    gangs: &[GangState],
    usage: &NamespaceUsage<'_>,
    reserved: impl Fn(usize) -> bool,
) -> Vec<Queueing> {
    let requesting = gangs
        .iter()
        .enumerate()
        .flat_map(|(at, gang)| requests_of(gang).map(move |request| (at, gang, request)));
    let mut queue: Vec<Queueing> = requesting
        .map(|(at, gang, request)| {
            let (priority, queued_at) = (gang.priority(), gang.status.queued_at);
            let uid = gang.uid().to_owned();
            let position = match request {
                Request::Required | Request::Move { .. } => {
                    QueuePosition::new(priority, queued_at, uid)
                }
                Request::Growth => QueuePosition::growth(priority, queued_at, uid),
            };
            let holds = reserved(at) || gang.assigned.is_some();
            let position = match request {
                Request::Required | Request::Move { .. } if holds => position.holding(),
                _ => position.with_share(usage.share(&gang.input.key.namespace)),
            };
            Queueing {
                position,
                at,
                request,
            }
        })
        .collect();
    sort(&mut queue);
    queue
}

/// Reorders the remaining queue after gangs of a namespace got capacity.
pub(super) fn reorder(
    queue: &mut [Queueing],
    gangs: &[GangState],
    usage: &NamespaceUsage<'_>,
    namespace: &str,
) {
    let share = usage.share(namespace);
    let mut changed = false;
    for waiting in &mut *queue {
        if *gangs[waiting.at].input.key.namespace == *namespace {
            let position = waiting.position.clone().with_share(share);
            changed |= position != waiting.position;
            waiting.position = position;
        }
    }
    if changed {
        sort(queue);
    }
}

fn sort(queue: &mut [Queueing]) {
    queue.sort_by(|a, b| b.position.cmp(&a.position));
}

/// What the gang requests. A gang that lacks members does not run, so it does not move.
pub(super) fn requests_of(gang: &GangState) -> impl Iterator<Item = Request> + use<> {
    let request = request_of(gang);
    let runs = request != Some(Request::Required) || gang.input.gang.basic;
    let moves = (runs && gang.seeks_nodes()).then_some(Request::Move { whole: false });
    moves.into_iter().chain(request)
}

/// `None` if the gang requests no capacity for members without nodes.
fn request_of(gang: &GangState) -> Option<Request> {
    let busy = gang.input.released() || gang.disrupted() || gang.status.preemption.is_some();
    let has_all = gang.fully_bound().is_some();
    if gang.phase() != &GangPhase::Active || busy || has_all {
        return None;
    }
    let placed = gang.unfinished_assigned().count();
    let to_place = gang.members_to_place().count();
    if to_place == 0 {
        return None;
    }
    let lacking = placed < gang.min_count() as usize && !gang.growing;
    if gang.assigned.is_none() || lacking || (gang.input.gang.basic && placed < to_place) {
        Some(Request::Required)
    } else if placed < to_place {
        Some(Request::Growth)
    } else {
        None
    }
}
