//! Conditions of a node as health agents write them, read by the manager's rules.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::node_signal::{BUILT_IN, NodeCondition, NodeFields, NodeSignal, outlook};
use lockstep_api::{Outlook, SignalLevel};

use super::inputs::Alarm;
use super::{HOUR, Time};

/// How long a false alarm that stands takes to be cleared.
pub(crate) const CLEARED_AFTER: Time = 6 * HOUR;
/// How long a short alarm lasts: less than the hold time.
const SHORT: Time = 20;

/// Conditions of the alarm, by a number.
fn conditions(alarm: Alarm, number: usize) -> (&'static str, &'static str, &'static str) {
    const NOISE: [(&str, &str, &str); 6] = [
        ("GpuDcgmConnectivityFailure", "True", "DcgmConnectivity"),
        ("GpuThermalWatch", "Unknown", "Thermal"),
        ("MemoryPressure", "True", "KubeletHasInsufficientMemory"),
        ("AcceleratedHardwareReady", "Unknown", "NodeStatusUnknown"),
        ("NTPProblem", "True", "NTPIsDown"),
        ("GpuNvlinkWatch", "False", "GpuNvlinkWatchIsHealthy"),
    ];
    const FAULTS: [(&str, &str, &str); 3] = [
        ("GpuNvlinkWatch", "True", "NVLINK"),
        ("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
        ("GpuMemWatch", "True", "DCGM_FR_VOLATILE_DBE_DETECTED"),
    ];
    match alarm {
        Alarm::Noise => NOISE[number % NOISE.len()],
        Alarm::Short | Alarm::Stands => FAULTS[number % FAULTS.len()],
    }
}

/// Seconds after which the node counts as Faulty because of the alarm. `None` if it never does.
pub(crate) fn counts_after(alarm: Alarm, number: usize) -> Option<Time> {
    let (type_, status, reason) = conditions(alarm, number);
    let begin = DateTime::UNIX_EPOCH;
    let none = BTreeMap::new();
    let fields = NodeFields {
        labels: &none,
        annotations: &none,
        taints: &[],
        conditions: vec![NodeCondition {
            type_,
            status,
            reason,
            since: Some(begin),
        }],
        limited: Vec::new(),
    };
    let found = BUILT_IN.iter().filter_map(|rule| rule.find(&fields));
    let signals: Vec<NodeSignal> = found
        .filter_map(|signal| signal.received(None, false, begin))
        .collect();
    let faults = signals.iter().filter(|s| s.level == SignalLevel::Faulty);
    let counts_from: DateTime<Utc> = faults.map(|s| s.counts_from).min()?;
    let ends = match alarm {
        Alarm::Noise | Alarm::Stands => CLEARED_AFTER,
        Alarm::Short => SHORT,
    };
    let stands = counts_from < begin + TimeDelta::seconds(ends);
    let is_faulty = outlook(&signals, counts_from) == Outlook::Faulty;
    (stands && is_faulty).then(|| (counts_from - begin).num_seconds())
}
