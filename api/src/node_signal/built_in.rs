//! The signals that need no configuration.

use std::borrow::Cow;

use super::SignalLevel::{self, Faulty, Leaving, Suspect};
use super::rule::{
    AllocatableMatch, ConditionMatch, DeadlineField, KeyMatch, SignalMatch, SignalRule, TaintMatch,
};

type Text = Cow<'static, str>;

/// How long faults must stand, because monitors flap while drivers are reset.
const HOLD_SECONDS: u32 = 30;
/// How long a node must offer too few devices. A restart of a device plugin takes less.
const DEVICES_HOLD_SECONDS: u32 = 600;
/// GKE's label with the start of a maintenance, days ahead.
const GKE_MAINTENANCE: &str = "cloud.google.com/scheduled-maintenance-time";

/// Reasons with which the EKS agent reports faults of accelerators that are certain.
const EKS_FAULTS: &[Text] = &[
    Cow::Borrowed("NvidiaXID*"),
    Cow::Borrowed("NvidiaDoubleBitError"),
    Cow::Borrowed("NvidiaNVLinkError"),
    Cow::Borrowed("NvidiaFabricError"),
    Cow::Borrowed("NvidiaDeviceCountMismatch"),
    Cow::Borrowed("Neuron*"),
];
const ONGOING: &[Text] = &[Cow::Borrowed("ONGOING")];
const TRUE: &[Text] = &[Cow::Borrowed("true")];
const QUARANTINED: &[Text] = &[Cow::Borrowed("quarantined")];
const DRAINED: &[Text] = &[
    Cow::Borrowed("draining"),
    Cow::Borrowed("drain-succeeded"),
    Cow::Borrowed("remediating"),
];
const PENDING_REPAIR: &[Text] = &[
    Cow::Borrowed("UnschedulablePendingReplacement"),
    Cow::Borrowed("UnschedulablePendingReboot"),
];
const FAILED: &[Text] = &[Cow::Borrowed("Failed")];

/// The built-in signals, by component. Names and polarity are those of each component.
pub const BUILT_IN: &[SignalRule] = &[
    // Kubernetes (KEP-5683): set by administrators.
    bad_if_true("GracefulNodeShutdownInProgress", Leaving),
    bad_if_true("DrainInProgress", Leaving),
    bad_if_true("MaintenancePlanned", Leaving),
    bad_if_true("MaintenanceInProgress", Leaving),
    // Device plugins.
    devices("NvidiaDevicesMissing", "nvidia.com/gpu"),
    devices("AmdDevicesMissing", "amd.com/gpu"),
    devices("GaudiDevicesMissing", "habana.ai/gaudi"),
    devices("TpuDevicesMissing", "google.com/tpu"),
    devices("NeuronDevicesMissing", "aws.amazon.com/neuron"),
    // node-problem-detector.
    bad_if_true("KernelDeadlock", Suspect),
    bad_if_true("ReadonlyFilesystem", Suspect),
    bad_if_true("XfsShutdown", Suspect),
    // Found after the reboot, so the machine runs again.
    bad_if_true("CperHardwareErrorFatal", Suspect),
    // NVSentinel: its conditions are fatal faults only.
    bad_if_true("GpuMemWatch", Faulty),
    bad_if_true("GpuPcieWatch", Faulty),
    bad_if_true("GpuInforomWatch", Faulty),
    bad_if_true("GpuSmWatch", Faulty),
    bad_if_true("GpuNvlinkWatch", Faulty),
    bad_if_true("GpuMcuWatch", Faulty),
    bad_if_true("GpuPmuWatch", Faulty),
    bad_if_true("GpuDriverWatch", Faulty),
    bad_if_true("SysLogsSXIDError", Faulty),
    bad_if_true("SysLogsGPUFallenOff", Faulty),
    bad_if_true("NVSwitchFatalError", Faulty),
    bad_if_true("NVSwitchDown", Faulty),
    bad_if_true("SysLogsXIDError", Suspect),
    bad_if_true("CSPMaintenance", Leaving),
    label(
        "NVSentinelQuarantined",
        NVSENTINEL_STATE,
        QUARANTINED,
        Faulty,
    ),
    label("NVSentinelDraining", NVSENTINEL_STATE, DRAINED, Leaving),
    // EKS node monitoring agent: False is bad, and the reason has the finding.
    condition(
        "AcceleratedHardwareFault",
        "AcceleratedHardwareReady",
        "False",
        EKS_FAULTS,
        Faulty,
    ),
    condition(
        "AcceleratedHardwareReady",
        "AcceleratedHardwareReady",
        "False",
        &[],
        Suspect,
    ),
    condition("KernelReady", "KernelReady", "False", &[], Suspect),
    condition("NetworkingReady", "NetworkingReady", "False", &[], Suspect),
    condition("StorageReady", "StorageReady", "False", &[], Suspect),
    // AKS.
    bad_if_true("GPUMissing", Faulty),
    bad_if_true("XIDErrors", Suspect),
    bad_if_true("NVLinkStatusInactive", Suspect),
    bad_if_true("IBLinkFlapping", Suspect),
    bad_if_true("FilesystemCorruptionProblem", Suspect),
    bad_if_true("VMEventScheduled", Leaving),
    // GKE.
    SignalRule {
        name: Cow::Borrowed("GKEScheduledMaintenance"),
        matches: SignalMatch::Label(KeyMatch {
            key: Cow::Borrowed(GKE_MAINTENANCE),
            values: Cow::Borrowed(&[]),
        }),
        level: Leaving,
        hold_seconds: 0,
        deadline: Some(DeadlineField::Label(Cow::Borrowed(GKE_MAINTENANCE))),
    },
    label(
        "GKEActiveMaintenance",
        "cloud.google.com/active-node-maintenance",
        ONGOING,
        Leaving,
    ),
    label(
        "GKEPerformMaintenance",
        "cloud.google.com/perform-maintenance",
        TRUE,
        Leaving,
    ),
    taint(
        "GKEMaintenanceWindowStarted",
        "cloud.google.com/maintenance-window-started",
        Leaving,
    ),
    taint(
        "GKEImpendingTermination",
        "cloud.google.com/impending-node-termination",
        Leaving,
    ),
    // SageMaker HyperPod.
    label(
        "HyperPodPendingRepair",
        "sagemaker.amazonaws.com/node-health-status",
        PENDING_REPAIR,
        Leaving,
    ),
    label(
        "HyperPodHealthCheckFailed",
        "sagemaker.amazonaws.com/deep-health-check-status",
        FAILED,
        Suspect,
    ),
    // Nebius.
    bad_if_true("NebiusGPUError", Suspect),
    bad_if_true("NebiusBootDiskIOError", Suspect),
    // Autoscalers.
    taint("KarpenterDisrupted", "karpenter.sh/disrupted", Leaving),
    taint("KarpenterRebooting", "karpenter.sh/rebooting", Leaving),
    taint(
        "ClusterAutoscalerDeletion",
        "ToBeDeletedByClusterAutoscaler",
        Leaving,
    ),
    // AWS Node Termination Handler.
    taint(
        "AWSSpotInterruption",
        "aws-node-termination-handler/spot-itn",
        Leaving,
    ),
    taint(
        "AWSScheduledMaintenance",
        "aws-node-termination-handler/scheduled-maintenance",
        Leaving,
    ),
    taint(
        "AWSGroupTermination",
        "aws-node-termination-handler/asg-lifecycle-termination",
        Leaving,
    ),
    taint(
        "AWSRebalanceRecommendation",
        "aws-node-termination-handler/rebalance-recommendation",
        Suspect,
    ),
];

const NVSENTINEL_STATE: &str = "dgxc.nvidia.com/nvsentinel-state";

/// Announcements need no hold time.
const fn rule(name: &'static str, matches: SignalMatch, level: SignalLevel) -> SignalRule {
    SignalRule {
        name: Cow::Borrowed(name),
        matches,
        level,
        hold_seconds: match level {
            Leaving => 0,
            Suspect | Faulty => HOLD_SECONDS,
        },
        deadline: None,
    }
}

const fn condition(
    name: &'static str,
    type_: &'static str,
    status: &'static str,
    reasons: &'static [Text],
    level: SignalLevel,
) -> SignalRule {
    let matches = ConditionMatch {
        type_: Cow::Borrowed(type_),
        status: Cow::Borrowed(status),
        reasons: Cow::Borrowed(reasons),
    };
    rule(name, SignalMatch::Condition(matches), level)
}

/// A condition with the name of the signal.
const fn bad_if_true(type_: &'static str, level: SignalLevel) -> SignalRule {
    condition(type_, type_, "True", &[], level)
}

const fn taint(name: &'static str, key: &'static str, level: SignalLevel) -> SignalRule {
    let matches = TaintMatch {
        key: Cow::Borrowed(key),
        value: None,
        effect: None,
    };
    rule(name, SignalMatch::Taint(matches), level)
}

const fn label(
    name: &'static str,
    key: &'static str,
    values: &'static [Text],
    level: SignalLevel,
) -> SignalRule {
    let matches = KeyMatch {
        key: Cow::Borrowed(key),
        values: Cow::Borrowed(values),
    };
    rule(name, SignalMatch::Label(matches), level)
}

const fn devices(name: &'static str, resource: &'static str) -> SignalRule {
    let matches = AllocatableMatch {
        resource: Cow::Borrowed(resource),
    };
    SignalRule {
        name: Cow::Borrowed(name),
        matches: SignalMatch::Allocatable(matches),
        level: Faulty,
        hold_seconds: DEVICES_HOLD_SECONDS,
        deadline: None,
    }
}
