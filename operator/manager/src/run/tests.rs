//! Bounds the series of a scrape of `/metrics`, for any number and history of workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use http::{Method, StatusCode};
use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::ACCELERATORS;
use lockstep_api::scheduling::{Placement, PodGroupStatus, Preemption};
use lockstep_api::workload::{CauseKind, FailureAction};
use lockstep_scheduler::SchedulingPlan;
use serde_json::{Value, json};

use super::*;
use crate::clock::SystemClock;
use crate::gauges::tests::{World, workload};
use crate::index::WatchedKind;
use crate::policy_check::PolicyMetric;
use crate::process;

/// Most series of a scrape.
const MOST: usize = 4500;
const WORKLOADS: usize = 1000;
const NAMESPACES: usize = 50;
const CLASSES: [&str; 5] = ["", "batch", "research", "production", "urgent"];
/// Type, status and reason of a condition.
type Says = (&'static str, bool, &'static str);
/// Conditions that all workloads have by default.
const WELL: [Says; 7] = [
    (types::ADMITTED, true, reasons::SCHEDULED),
    (types::READY, true, reasons::ALL_MEMBERS_READY),
    (types::RECONCILING, false, reasons::RECONCILED),
    (types::STALLED, false, reasons::RECONCILED),
    (types::RESTARTING, false, reasons::NOT_RESTARTING),
    (types::DISRUPTION_TARGET, false, reasons::NOT_PREEMPTED),
    (types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED),
];
/// Further conditions, all of which occur in every namespace.
const STANDS: [&[Says]; 8] = [
    &[
        (types::ADMITTED, false, reasons::UNSCHEDULABLE),
        (types::READY, false, reasons::MEMBERS_NOT_READY),
        (types::RECONCILING, true, reasons::PROGRESSING),
    ],
    &[],
    &[
        (types::RESTARTING, true, reasons::RESTART_GANG),
        (types::READY, false, reasons::STARTING),
        (types::RECONCILING, true, reasons::PROGRESSING),
    ],
    &[
        (
            types::DISRUPTION_TARGET,
            true,
            reasons::PREEMPTION_BY_SCHEDULER,
        ),
        (types::ADMITTED, false, reasons::PREEMPTED),
        (types::RESTARTS_IN_PLACE, false, reasons::AGENT_MISSING),
    ],
    &[
        (types::SUSPENDED, true, reasons::SUSPENDED),
        (types::ADMITTED, false, reasons::SUSPENDED),
        (types::READY, false, reasons::SUSPENDED),
    ],
    &[
        (types::STALLED, true, reasons::INVALID_TEMPLATE),
        (types::ADMITTED, false, reasons::INVALID_TEMPLATE),
        (types::READY, false, reasons::INVALID_TEMPLATE),
    ],
    &[
        (types::COMPLETE, true, reasons::SUCCESS_POLICY),
        (types::SUSPENDED, false, reasons::RESUMED),
    ],
    &[
        (types::FAILED, true, reasons::RESTART_LIMIT_EXCEEDED),
        (types::STALLED, true, reasons::RESTART_LIMIT_EXCEEDED),
        (types::READY, false, reasons::RESTART_LIMIT_EXCEEDED),
    ],
];
const ACTIONS: [FailureAction; 3] = [
    FailureAction::RestartGang,
    FailureAction::RecreateGang,
    FailureAction::FailWorkload,
];

/// All metrics of a leader at `/metrics`.
struct Leading {
    world: World,
    registry: Registry,
    metrics: Metrics,
    /// Successive statuses of each workload, shared by later workloads.
    statuses: Vec<[TrainingWorkloadStatus; 3]>,
    /// The process leads until this is dropped.
    _leadership: signal::Sender<Option<Leadership>>,
}

fn at(seconds: usize) -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).unwrap() + TimeDelta::seconds(seconds as i64)
}

impl Leading {
    fn new() -> Self {
        let world = World::new();
        let mut registry = Registry::default();
        process::register(&mut registry);
        drop(PolicyMetric::register(&mut registry));
        let metrics = Metrics::register(&mut registry);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (leadership, tenure) = signal::channel(Some(Leadership {
            term: 1,
            valid_until: clock.monotonic() + Duration::from_hours(1),
        }));
        registry.register_collector(Box::new(Gauges {
            index: world.index.clone(),
            tenure: Tenure::new(tenure),
            clock,
            accelerators: ACCELERATORS.map(str::to_owned).to_vec(),
        }));
        registry.register_collector(Box::new(InHand {
            queue: world.queue.clone(),
            workers: 8,
        }));
        Self {
            world,
            registry,
            metrics,
            statuses: (0..WORKLOADS)
                .map(|n| [0, 1, 2].map(|step| serde_json::from_value(status(n, step)).unwrap()))
                .collect(),
            _leadership: leadership,
        }
    }

    fn series(&self) -> BTreeSet<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        let names = lines.filter_map(|l| Some(l.rsplit_once(' ')?.0.to_owned()));
        names.collect()
    }

    /// Adds a workload, and counts its transitions.
    fn comes(&mut self, name: &str, n: usize) {
        self.world
            .see(WatchedKind::TrainingWorkload, object(name, n));
        let namespace = namespace(n);
        let index = &self.world.index;
        self.metrics
            .workloads
            .ensure_series(&namespace, |n| index.read().has_namespace(n));
        let mut old = None;
        for new in &self.statuses[n] {
            self.metrics.workloads.wrote(&namespace, old, new);
            old = Some(new);
        }
        self.is_scheduled(n);
        let codes = [200, 201, 404, 409, 422, 429, 500, 503];
        for method in [Method::GET, Method::POST, Method::PATCH, Method::DELETE] {
            let status = StatusCode::from_u16(codes[n % codes.len()]).unwrap();
            self.metrics.requests.count(&method, Some(status));
            self.metrics
                .requests
                .took(&method, Duration::from_millis(3));
        }
    }

    fn is_scheduled(&self, n: usize) {
        let waits = PodGroupStatus {
            queued_at: Some(at(0)),
            ..PodGroupStatus::default()
        };
        let placed = PodGroupStatus {
            placement: Some(Placement {
                id: "p".into(),
                ..Placement::default()
            }),
            ..waits.clone()
        };
        let preempts = PodGroupStatus {
            preemption: Some(Preemption {
                placement: "p".into(),
                ..Preemption::default()
            }),
            ..placed.clone()
        };
        let class = Some(CLASSES[n % CLASSES.len()]);
        let scheduler = &self.metrics.scheduler;
        scheduler.decided(&SchedulingPlan::default(), Duration::from_millis(1));
        scheduler.wrote(class, &waits, &preempts, at(10));
        scheduler.wrote(class, &preempts, &placed, at(30));
    }
}

/// Number of series by metric.
fn by_family(series: &BTreeSet<String>) -> BTreeMap<&str, usize> {
    let mut out = BTreeMap::new();
    for name in series.iter().filter_map(|s| s.split('{').next()) {
        *out.entry(name).or_default() += 1;
    }
    out
}

fn namespace(n: usize) -> String {
    format!("team-{}", n % NAMESPACES)
}

/// A workload waits, runs after an incident, and then reaches its final state.
fn status(n: usize, step: usize) -> Value {
    let stands = [0, 1, n / NAMESPACES % STANDS.len()][step];
    let other = STANDS[stands];
    let well = WELL
        .iter()
        .filter(|(type_, ..)| other.iter().all(|(t, ..)| t != type_));
    let conditions: Vec<Value> = well.chain(other).map(|(type_, status, reason)| {
        json!({"type": type_, "status": if *status { "True" } else { "False" }, "reason": reason, "message": "",
            "lastTransitionTime": format!("2026-11-18T11:0{step}:00Z")})
    }).collect();
    let kind = CauseKind::ALL[n / NAMESPACES % CauseKind::ALL.len()];
    let action = ACTIONS[n % ACTIONS.len()];
    let incident = json!({"domain": "workload", "attempt": 1, "action": action.as_str(), "counted": kind.is_counted(),
        "cause": {"kind": kind.as_str(), "time": "2026-11-18T11:01:00Z"}, "time": "2026-11-18T11:01:00Z",
        "recoveredAt": "2026-11-18T11:02:00Z", "lostAcceleratorSeconds": 640});
    let history: Vec<&Value> = std::iter::once(&incident).filter(|_| step > 0).collect();
    json!({"phase": "Running", "conditions": conditions, "history": history, "accounting": {"accelerators": 8}})
}

fn object(name: &str, n: usize) -> Value {
    let mut object = workload(&namespace(n), name, CLASSES[n % CLASSES.len()]);
    object["status"] = status(n, 2);
    object
}

/// Errors in the series of a scrape, if all workloads are called `job-`.
fn too_many(series: &BTreeSet<String>) -> Vec<String> {
    let mut out = Vec::new();
    let size = series.len();
    if !(2000..=MOST).contains(&size) {
        out.push(format!("{size} series: {:#?}", by_family(series)));
    }
    let named = series.iter().find(|s| s.contains("job-"));
    out.extend(named.map(|s| format!("a name: {s}")));
    out
}

#[test]
fn a_family_with_names_of_workloads_and_one_with_too_many_series_are_noticed() {
    let family = |label: &str, series: usize| -> BTreeSet<String> {
        let series = 0..series;
        series
            .map(|n| format!("lockstep_mood{{{label}-{n}\"}}"))
            .collect()
    };
    let namespaces = "namespace=\"team";
    assert_eq!(too_many(&family(namespaces, MOST)), Vec::<String>::new());
    let named = too_many(&family("workload=\"job", MOST));
    assert_eq!(named, ["a name: lockstep_mood{workload=\"job-0\"}"]);
    // Nothing is counted without transitions.
    for size in [0, MOST + 1] {
        let found = too_many(&family(namespaces, size)).concat();
        assert!(found.starts_with(&format!("{size} series")), "{found}");
    }
}

#[test]
fn a_scrape_does_not_grow_with_ten_thousand_short_lived_workloads() {
    let mut leading = Leading::new();
    let mut after = Vec::new();
    for round in 0..10 {
        let name = |n: usize| format!("job-{round}-{n}");
        for n in 0..WORKLOADS {
            leading.comes(&name(n), n);
        }
        assert_eq!(too_many(&leading.series()), Vec::<String>::new());
        for n in 0..WORKLOADS {
            let gone = workload(&namespace(n), &name(n), "");
            leading.world.forget(WatchedKind::TrainingWorkload, gone);
        }
        after.push(leading.series());
    }
    let (first, last) = (&after[0], &after[9]);
    assert_eq!(first, last);
}

#[test]
fn a_namespace_that_is_gone_leaves_no_series() {
    let mut leading = Leading::new();
    let of = |name: &str| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
    for n in 0..3 {
        leading.world.see(WatchedKind::Namespace, of(&namespace(n)));
        leading.comes(&format!("job-{n}"), n);
    }
    // First the workload is deleted, then also its namespace.
    for n in [0, 1] {
        let gone = workload(&namespace(n), &format!("job-{n}"), "");
        leading.world.forget(WatchedKind::TrainingWorkload, gone);
    }
    for n in [0, 2] {
        leading
            .world
            .forget(WatchedKind::Namespace, of(&namespace(n)));
    }
    leading.world.see(WatchedKind::Namespace, of(&namespace(3)));
    leading.comes("job-3", 3);
    let series = leading.series();
    let shown = (0..4).map(|n| {
        let label = format!("namespace=\"{}\"", namespace(n));
        let mut counters = series.iter().filter(|s| s.contains("_total{"));
        counters.any(|s| s.contains(&label))
    });
    assert_eq!(shown.collect::<Vec<_>>(), [false, true, true, true]);
}
