//! A workload in each phase, for outputs of phases: columns, tools for GitOps.

use lockstep_api::workload::Phase;
use serde_json::json;

use crate::Solo;
use crate::solo::{gang, gang_with};

/// All phases, in a possible order.
pub const PHASES: [Phase; 9] = [
    Phase::Pending,
    Phase::Suspended,
    Phase::Stalled,
    Phase::Starting,
    Phase::Running,
    Phase::Restarting,
    Phase::Preempting,
    Phase::Succeeded,
    Phase::Failed,
];

/// A workload in a phase: two members, or 20 if it waits for capacity.
pub fn in_phase(phase: Phase) -> Solo {
    let spec = match phase {
        Phase::Pending => gang(20),
        Phase::Suspended => gang_with(2, &json!({"suspend": true})),
        Phase::Stalled => gang_with(2, &json!({"priorityClassName": "nobody"})),
        Phase::Failed => gang_with(2, &json!({"failurePolicy": {"limits": {"maxRestarts": 0}}})),
        _ => gang(2),
    };
    let mut w = Solo::new(spec);
    if phase == Phase::Starting {
        w.faults(|f| f.starts_nothing = true);
        w.wait(5);
        return w;
    }
    w.settle();
    match phase {
        Phase::Succeeded => {
            w.exit("g", 0, 0);
            w.exit("g", 1, 0);
            w.settle();
        }
        Phase::Failed => {
            w.exit("g", 0, 3);
            w.settle();
        }
        Phase::Restarting => {
            w.faults(|f| f.starts_nothing = true);
            w.exit("g", 0, 3);
            w.wait(5);
        }
        Phase::Preempting => preempt(&mut w),
        _ => {}
    }
    w
}

/// A workload of higher priority needs every node. Returns when the pods of the first workload are
/// gone.
fn preempt(w: &mut Solo) {
    w.create_class("important", 100, "PreemptLowerPriority");
    w.add_workload(
        "boss",
        gang_with(8, &json!({"priorityClassName": "important"})),
    );
    w.until("it is preempted", |w| {
        w.status().phase == Some(Phase::Preempting)
    });
}
