//! Recording rules for dashboards.

use super::rule::Recording;

/// Recording rules for long time ranges.
pub const RECORDINGS: [Recording; 3] = [
    Recording {
        name: "lockstep:accelerators_in_use:ratio",
        labels: &[],
        expr: r#"sum(lockstep_accelerators{state="held"}) / sum(lockstep_accelerators)"#,
    },
    Recording {
        name: "lockstep:goodput:ratio_rate1h",
        labels: &[],
        expr: "clamp_min(1 - sum(rate(lockstep_lost_accelerator_seconds_total[1h])) / sum(lockstep_accelerators_held), 0)",
    },
    Recording {
        name: "lockstep:queue_wait_seconds:p95_1d",
        labels: &["priority_class"],
        expr: "histogram_quantile(0.95, sum by (le, priority_class) (rate(lockstep_queue_wait_seconds_bucket[1d])))",
    },
];
