//! Messages of the scheduler that would take thousands of nodes, or a race.

use lockstep_model::Dims;
use lockstep_model::volumes::MissingVolume;
use lockstep_scheduler::Pending;
use lockstep_scheduler::hold::Hold;
use lockstep_scheduler::messages::pending;
use lockstep_scheduler::size::TooLarge;

/// Nodes whose kubelets rejected a pod.
fn rejecting(others: usize) -> Pending {
    Pending::RejectingNodes {
        node: "n1".into(),
        others,
        next_try: "2026-11-18T11:08:47Z".parse().unwrap(),
    }
}

/// Reason and message of waiting gangs.
pub(super) fn spoken() -> Vec<(&'static str, String)> {
    let too_large = TooLarge {
        members: 20_000,
        victims: 1,
        bytes: 1_800_000,
        limit: 1_310_720,
    };
    let waits = [
        Pending::TooLarge(too_large),
        rejecting(0),
        rejecting(2),
        Pending::Held(Hold::Volume(MissingVolume::Deleting("data".into()))),
        Pending::Reserved { gangs: 2 },
        Pending::Exchange { gangs: 1 },
    ];
    let dims = Dims::new([], []);
    let words = waits.iter().map(|p| (p.reason(), pending(p, &dims)));
    words.collect()
}
