//! Signals of nodes: what the built-in rules find, and when it has an effect.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::node_signal::BUILT_IN;
use lockstep_api::{NodeHealthMode, Outlook, SignalLevel};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::*;
use crate::clock::Clock;
use crate::node_health;

/// A clock that tests set.
struct SetClock(Mutex<DateTime<Utc>>);

impl Clock for SetClock {
    fn wall(&self) -> DateTime<Utc> {
        *self.0.lock()
    }
}

struct Signals {
    f: Fixture,
    clock: Arc<SetClock>,
}

impl Signals {
    /// At 10:00:00, with the built-in rules and workload `llama`, whose pod runs on `n1`.
    fn new(mode: NodeHealthMode) -> Self {
        let start = TIME.parse().unwrap();
        let clock = Arc::new(SetClock(Mutex::new(start)));
        let f = Fixture::with_clock(clock.clone());
        f.index.use_signal_rules(BUILT_IN.to_vec(), mode);
        f.see::<Workloads>(&workload("llama"));
        let mut pod = member("a", "llama", "n1");
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "8"}});
        f.see::<Pods>(&pod);
        f.see::<Nodes>(&node("n1", "True"));
        Self { f, clock }
    }

    /// Time passes, and the index follows it.
    fn pass(&self, seconds: i64) {
        *self.clock.0.lock() += TimeDelta::seconds(seconds);
        self.f.index.follow_signals();
    }

    fn names(&self) -> Vec<String> {
        let state = self.f.index.read();
        let signals = state.nodes["n1"].signals.iter();
        signals.map(|signal| signal.name.clone()).collect()
    }

    /// As workloads and the scheduler read it.
    fn outlook(&self) -> Outlook {
        let state = self.f.index.read();
        let of_workloads = state.nodes["n1"].state;
        let cluster = state.model.snapshot();
        let of_scheduler = cluster.node(cluster.ordinal("n1").unwrap()).unwrap().state;
        assert_eq!(of_workloads, of_scheduler);
        of_workloads.outlook
    }

    /// True if something has to decide again since the last call.
    async fn woken(&self) -> (bool, bool) {
        let workloads = !self.f.dirty().await.is_empty();
        (workloads, self.f.scheduler_woken().await)
    }
}

fn with_condition(type_: &str, status: &str, reason: &str) -> Value {
    let mut node = node("n1", "True");
    let conditions = node["status"]["conditions"].as_array_mut().unwrap();
    conditions.push(json!({"type": type_, "status": status, "reason": reason,
        "lastHeartbeatTime": TIME, "lastTransitionTime": TIME}));
    node
}

fn with_taint(key: &str) -> Value {
    let mut node = node("n1", "True");
    node["spec"]["taints"] = json!([{"key": key, "effect": "NoSchedule"}]);
    node
}

fn with_label(key: &str, value: &str) -> Value {
    let mut node = node("n1", "True");
    node["metadata"]["labels"] = json!({key: value});
    node
}

fn with_gpus(allocatable: &str) -> Value {
    let mut node = node("n1", "True");
    node["status"]["capacity"] = json!({"nvidia.com/gpu": "8"});
    node["status"]["allocatable"]["nvidia.com/gpu"] = json!(allocatable);
    node
}

const FAULT: fn() -> Value = || with_condition("GPUMissing", "True", "GPUMissing");

/// Fields of a node as a component writes them, and the signals that they mean.
type Fields = (Value, &'static [&'static str]);

/// Conditions that are bad with status True, with each status.
fn bad_if_true() -> Vec<Fields> {
    let npd = [
        "KernelDeadlock",
        "ReadonlyFilesystem",
        "XfsShutdown",
        "CperHardwareErrorFatal",
    ];
    let lifecycle = [
        "GracefulNodeShutdownInProgress",
        "DrainInProgress",
        "MaintenancePlanned",
        "MaintenanceInProgress",
    ];
    let sentinel = [
        "GpuMemWatch",
        "GpuPcieWatch",
        "GpuInforomWatch",
        "GpuSmWatch",
        "GpuNvlinkWatch",
        "GpuMcuWatch",
        "GpuPmuWatch",
        "GpuDriverWatch",
        "SysLogsSXIDError",
        "SysLogsGPUFallenOff",
        "NVSwitchFatalError",
        "NVSwitchDown",
        "SysLogsXIDError",
        "CSPMaintenance",
    ];
    let aks = [
        "GPUMissing",
        "XIDErrors",
        "NVLinkStatusInactive",
        "IBLinkFlapping",
        "FilesystemCorruptionProblem",
        "VMEventScheduled",
    ];
    let nebius = ["NebiusGPUError", "NebiusBootDiskIOError"];
    let bad_if_true = [&npd[..], &lifecycle, &sentinel, &aks, &nebius].concat();
    let mut out = Vec::new();
    for name in bad_if_true {
        let rule = BUILT_IN.iter().find(|rule| rule.name == name);
        let name: &'static str = match &rule.unwrap().name {
            std::borrow::Cow::Borrowed(name) => name,
            std::borrow::Cow::Owned(_) => unreachable!(),
        };
        let bad: &'static [&'static str] = Box::leak(Box::new([name]));
        out.push((with_condition(name, "True", "Found"), bad));
        out.push((with_condition(name, "False", "Found"), &[][..]));
        out.push((with_condition(name, "Unknown", "Found"), &[][..]));
    }
    out
}

/// Conditions that are bad with status False, and noise.
fn other_conditions() -> Vec<Fields> {
    let eks = |status, reason| with_condition("AcceleratedHardwareReady", status, reason);
    vec![
        (
            eks("False", "NvidiaXID79Error"),
            &["AcceleratedHardwareFault", "AcceleratedHardwareReady"][..],
        ),
        (eks("False", "DCGMError"), &["AcceleratedHardwareReady"]),
        (eks("True", "NvidiaAcceleratedHardwareIsReady"), &[]),
        (eks("Unknown", "NvidiaXID79Error"), &[]),
        (
            with_condition("KernelReady", "False", "SoftLockup"),
            &["KernelReady"],
        ),
        (
            with_condition("NetworkingReady", "False", "Down"),
            &["NetworkingReady"],
        ),
        (
            with_condition("StorageReady", "False", "XFSSmallAverage"),
            &["StorageReady"],
        ),
        (with_condition("StorageReady", "True", "Ready"), &[]),
        // Noise: the monitor, pressure, clocks, temperature.
        (
            with_condition("MemoryPressure", "True", "KubeletHasInsufficientMemory"),
            &[],
        ),
        (with_condition("NTPProblem", "True", "NTPIsDown"), &[]),
        (
            with_condition("GpuThermalWatch", "True", "DCGM_FR_CLOCK_THROTTLE_THERMAL"),
            &[],
        ),
        (
            with_condition("GpuDcgmConnectivityFailure", "True", "Down"),
            &[],
        ),
        (
            with_condition("FrequentKubeletRestart", "True", "Restarts"),
            &[],
        ),
    ]
}

fn labels_and_devices() -> Vec<Fields> {
    let label = with_label;
    let (sentinel, hyperpod) = (
        "dgxc.nvidia.com/nvsentinel-state",
        "sagemaker.amazonaws.com/node-health-status",
    );
    vec![
        (
            label("cloud.google.com/active-node-maintenance", "ONGOING"),
            &["GKEActiveMaintenance"],
        ),
        (
            label("cloud.google.com/active-node-maintenance", "NONE"),
            &[],
        ),
        (
            label("cloud.google.com/perform-maintenance", "true"),
            &["GKEPerformMaintenance"],
        ),
        (
            // In 2027.
            label("cloud.google.com/scheduled-maintenance-time", "1800000000"),
            &["GKEScheduledMaintenance"],
        ),
        (
            label("cloud.google.com/scheduled-maintenance-time", "1700000000"),
            &[],
        ),
        (
            label("cloud.google.com/scheduled-maintenance-time", "soon"),
            &["GKEScheduledMaintenance"],
        ),
        (label(sentinel, "quarantined"), &["NVSentinelQuarantined"]),
        (label(sentinel, "draining"), &["NVSentinelDraining"]),
        (label(sentinel, "remediation-succeeded"), &[]),
        (
            label(hyperpod, "UnschedulablePendingReboot"),
            &["HyperPodPendingRepair"],
        ),
        (label(hyperpod, "Schedulable"), &[]),
        (
            label("sagemaker.amazonaws.com/deep-health-check-status", "Failed"),
            &["HyperPodHealthCheckFailed"],
        ),
        (
            label(
                "sagemaker.amazonaws.com/deep-health-check-status",
                "InProgress",
            ),
            &[],
        ),
        (with_gpus("7"), &["NvidiaDevicesMissing"]),
        (with_gpus("8"), &[]),
        // The device plugin is away.
        (with_gpus("0"), &[]),
    ]
}

fn taints() -> Vec<Fields> {
    let taints: [(&str, &[&str]); 11] = [
        (
            "cloud.google.com/maintenance-window-started",
            &["GKEMaintenanceWindowStarted"],
        ),
        (
            "cloud.google.com/impending-node-termination",
            &["GKEImpendingTermination"],
        ),
        ("karpenter.sh/disrupted", &["KarpenterDisrupted"]),
        ("karpenter.sh/rebooting", &["KarpenterRebooting"]),
        (
            "ToBeDeletedByClusterAutoscaler",
            &["ClusterAutoscalerDeletion"],
        ),
        ("DeletionCandidateOfClusterAutoscaler", &[]),
        (
            "aws-node-termination-handler/spot-itn",
            &["AWSSpotInterruption"],
        ),
        (
            "aws-node-termination-handler/scheduled-maintenance",
            &["AWSScheduledMaintenance"],
        ),
        (
            "aws-node-termination-handler/asg-lifecycle-termination",
            &["AWSGroupTermination"],
        ),
        (
            "aws-node-termination-handler/rebalance-recommendation",
            &["AWSRebalanceRecommendation"],
        ),
        // A cordon, often just a person looking.
        ("node.kubernetes.io/unschedulable", &[]),
    ];
    let all = taints.map(|(key, names)| (with_taint(key), names));
    all.into()
}

#[tokio::test(start_paused = true)]
async fn each_built_in_signal_is_found_with_the_polarity_of_its_component() {
    let s = Signals::new(NodeHealthMode::Observe);
    let mut found = BTreeSet::new();
    let all = [
        bad_if_true(),
        other_conditions(),
        labels_and_devices(),
        taints(),
    ];
    for (object, names) in all.concat() {
        s.f.see::<Nodes>(&object);
        assert_eq!(s.names(), names, "{object}");
        assert_eq!(s.outlook(), Outlook::Healthy, "signals are only shown");
        found.extend(names.iter().copied());
    }
    // One device plugin stands for all.
    let untested: Vec<&str> = BUILT_IN
        .iter()
        .map(|rule| &*rule.name)
        .filter(|name| !found.contains(name) && !name.ends_with("DevicesMissing"))
        .collect();
    assert_eq!(untested, Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn a_fault_counts_once_its_hold_time_is_over() {
    let s = Signals::new(NodeHealthMode::Act);
    s.f.see::<Nodes>(&FAULT());
    assert_eq!(
        (s.names(), s.outlook()),
        (vec!["GPUMissing".to_owned()], Outlook::Healthy)
    );
    assert_eq!(
        s.f.index.next_signal_change(),
        Some(Duration::from_secs(30))
    );
    s.pass(29);
    s.woken().await;
    assert_eq!(s.outlook(), Outlook::Healthy);
    s.pass(1);
    assert_eq!(
        (s.outlook(), s.woken().await),
        (Outlook::Faulty, (true, true))
    );
    s.pass(600);
    assert_eq!(s.woken().await, (false, false));
    s.f.see::<Nodes>(&node("n1", "True"));
    assert_eq!(
        (s.outlook(), s.woken().await),
        (Outlook::Healthy, (true, true))
    );
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_is_withdrawn_begins_a_new_hold_time() {
    let s = Signals::new(NodeHealthMode::Act);
    for _ in 0..5 {
        s.f.see::<Nodes>(&FAULT());
        s.pass(20);
        assert_eq!(s.outlook(), Outlook::Healthy);
        s.f.see::<Nodes>(&node("n1", "True"));
        s.pass(5);
        assert_eq!(s.names(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_process_counts_the_hold_time_from_the_transition_of_the_condition() {
    let s = Signals::new(NodeHealthMode::Act);
    s.f.gone::<Nodes>(&node("n1", "True"));
    s.pass(60);
    s.f.see::<Nodes>(&FAULT());
    assert_eq!(s.outlook(), Outlook::Faulty);
    // The clock of the node is ahead.
    s.f.gone::<Nodes>(&node("n1", "True"));
    let mut ahead = FAULT();
    ahead["status"]["conditions"][1]["lastTransitionTime"] = json!("2026-11-21T11:00:00Z");
    s.f.see::<Nodes>(&ahead);
    assert_eq!(s.outlook(), Outlook::Healthy);
    s.pass(30);
    assert_eq!(s.outlook(), Outlook::Faulty);
}

#[tokio::test(start_paused = true)]
async fn a_label_that_a_new_process_finds_has_no_hold_time() {
    let s = Signals::new(NodeHealthMode::Act);
    let mut quarantined = node("n1", "True");
    quarantined["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"] = json!("quarantined");
    s.f.see::<Nodes>(&quarantined);
    assert_eq!(s.outlook(), Outlook::Healthy);
    s.f.gone::<Nodes>(&node("n1", "True"));
    s.f.see::<Nodes>(&quarantined);
    assert_eq!(s.outlook(), Outlook::Faulty);
}

#[tokio::test(start_paused = true)]
async fn refreshed_conditions_wake_nothing() {
    for mode in [NodeHealthMode::Observe, NodeHealthMode::Act] {
        let s = Signals::new(mode);
        s.f.see::<Nodes>(&FAULT());
        s.pass(60);
        s.woken().await;
        for minute in 10..20 {
            let mut refreshed = FAULT();
            refreshed["metadata"]["resourceVersion"] = json!(minute.to_string());
            let time = json!(format!("2026-11-21T10:{minute}:00Z"));
            refreshed["status"]["conditions"][1]["lastHeartbeatTime"] = time.clone();
            refreshed["status"]["conditions"][1]["lastTransitionTime"] = time;
            s.pass(300);
            s.f.see::<Nodes>(&refreshed);
            assert_eq!(s.woken().await, (false, false));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_announcement_ends_with_its_deadline() {
    let s = Signals::new(NodeHealthMode::Act);
    let at: DateTime<Utc> = "2026-11-21T10:05:00Z".parse().unwrap();
    let label = "cloud.google.com/scheduled-maintenance-time";
    s.f.see::<Nodes>(&with_label(label, &at.timestamp().to_string()));
    assert_eq!(s.outlook(), Outlook::Leaving { deadline: Some(at) });
    assert_eq!(s.f.index.next_signal_change(), Some(Duration::from_mins(5)));
    s.pass(300);
    assert_eq!((s.outlook(), s.names()), (Outlook::Healthy, Vec::new()));
    s.f.see::<Nodes>(&with_taint("karpenter.sh/disrupted"));
    assert_eq!(s.outlook(), Outlook::Leaving { deadline: None });
}

#[tokio::test(start_paused = true)]
async fn missing_devices_count_while_pods_request_them() {
    let s = Signals::new(NodeHealthMode::Act);
    s.f.see::<Nodes>(&with_gpus("7"));
    s.pass(599);
    assert_eq!(s.outlook(), Outlook::Healthy);
    s.pass(1);
    assert_eq!(s.outlook(), Outlook::Faulty);
    let pod = member("a", "llama", "n1");
    s.f.gone::<Pods>(&pod);
    assert_eq!((s.outlook(), s.names()), (Outlook::Healthy, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn the_most_severe_signal_decides_about_the_outlook() {
    let s = Signals::new(NodeHealthMode::Act);
    let mut both = with_condition("KernelDeadlock", "True", "TaskHung");
    s.f.see::<Nodes>(&both);
    s.pass(30);
    assert_eq!(s.outlook(), Outlook::Suspect);
    both["spec"] = with_taint("karpenter.sh/disrupted")["spec"].clone();
    s.f.see::<Nodes>(&both);
    assert_eq!(s.outlook(), Outlook::Leaving { deadline: None });
    let levels: Vec<SignalLevel> = {
        let state = s.f.index.read();
        state.nodes["n1"].signals.iter().map(|s| s.level).collect()
    };
    assert_eq!(levels, [SignalLevel::Leaving, SignalLevel::Suspect]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_mode_has_an_effect_at_once() {
    let s = Signals::new(NodeHealthMode::Observe);
    s.f.see::<Nodes>(&FAULT());
    s.pass(60);
    let (sender, mode) = watch::channel(NodeHealthMode::Observe);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(node_health::follow(s.f.index.clone(), mode));
    for (mode, names, outlook) in [
        (NodeHealthMode::Act, 1, Outlook::Faulty),
        (NodeHealthMode::Off, 0, Outlook::Healthy),
        (NodeHealthMode::Observe, 1, Outlook::Healthy),
        (NodeHealthMode::Act, 1, Outlook::Faulty),
    ] {
        s.woken().await;
        sender.send_replace(mode);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((s.names().len(), s.outlook()), (names, outlook), "{mode:?}");
        assert!(s.woken().await.0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_hold_time_needs_no_event() {
    let s = Signals::new(NodeHealthMode::Act);
    let (_sender, mode) = watch::channel(NodeHealthMode::Act);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(node_health::follow(s.f.index.clone(), mode));
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.f.see::<Nodes>(&FAULT());
    tokio::time::sleep(Duration::from_millis(1)).await;
    *s.clock.0.lock() += TimeDelta::seconds(30);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(s.outlook(), Outlook::Faulty);
}
