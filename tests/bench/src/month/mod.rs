//! A month of failures on 1,250 nodes: a discrete-event model of gangs, nodes and stops.
//!
//! All arms get the same [`Inputs`]. Signals are read by the manager's own rules. Every member takes a
//! whole node, so a placement is a choice of free nodes, and a model of the scheduler suffices. When
//! gangs stop, save, move and restart follows the documented rules, with measured restart times
//! (docs/benchmarks.md).

mod alarms;
mod arm;
mod inputs;
mod report;
mod stops;
mod world;

pub use self::arm::Arm;
pub use self::inputs::{Inputs, Setting};
pub use self::report::{Outcome, tables};
pub use self::world::play;

/// Seconds.
pub(crate) type Time = i64;

pub(crate) const MINUTE: Time = 60;
pub(crate) const HOUR: Time = 60 * MINUTE;
pub(crate) const DAY: Time = 24 * HOUR;
/// Accelerators of a node.
pub(crate) const ACCELERATORS: i64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::month::report::Cause;

    /// Fewer nodes and days, with the same rates.
    fn played(arm: Arm) -> Outcome {
        let setting = Setting {
            seed: 0,
            nodes: 640,
            days: 10,
            failures: 6.5,
            pull: 300,
        };
        play(&Inputs::new(&setting), arm)
    }

    #[test]
    fn equal_inputs_lead_to_equal_outcomes() {
        assert_eq!(played(Arm::Signals), played(Arm::Signals));
    }

    #[test]
    fn no_gang_moves_by_noise_or_by_short_alarms() {
        let outcome = played(Arm::Signals);
        assert_eq!(outcome.moves_by_noise, 0);
        assert!(outcome.false_moves > 0, "standing alarms are counted");
        assert_eq!(played(Arm::Requests).false_moves, 0);
    }

    #[test]
    fn requests_and_signals_save_most_of_what_announced_stops_destroy() {
        let (without, with) = (played(Arm::InPlace), played(Arm::Signals));
        let lost = |cause| (without.work_lost(cause), with.work_lost(cause));
        let (before, after) = lost(Cause::Maintenance);
        assert!(5 * after <= before, "{after} of {before}");
        // A fifth of the gangs answers no request.
        let (before, after) = lost(Cause::Preemption);
        assert!(2 * after <= before, "{after} of {before}");
    }

    #[test]
    fn all_held_time_is_accounted_for() {
        for arm in Arm::ALL {
            let outcome = played(arm);
            let parts = outcome.useful() + outcome.lost();
            assert_eq!(parts, outcome.held(), "{arm:?}");
        }
    }
}
