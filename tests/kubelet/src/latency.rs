//! Durations on a node: a measured profile, and zero.

use std::time::Duration;

/// Durations of a node's runtime and kubelet, without jitter, so that two runs are comparable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyProfile {
    /// Period of the kubelet's relist of the runtime (PLEG), which detects exits.
    pub relist: Duration,
    /// Volumes and sandbox of a new pod, network included.
    pub sandbox: Duration,
    /// Pull of an image that is not on the node.
    pub image_pull: Duration,
    /// Creation and start of a container.
    pub start: Duration,
    /// From SIGTERM to the exit of a program with a handler.
    pub terminate: Duration,
    /// From SIGKILL to the exit that the runtime reports.
    pub kill: Duration,
    /// Unmounting and clean-up after the last container of a pod, before the pod object can be
    /// removed.
    pub cleanup: Duration,
}

impl LatencyProfile {
    /// A node with containerd 2.4 on a small machine: medians of 30 rounds. In place, stop, create
    /// and start took 89 ms together and StopContainer alone 34 ms, so a start is 55 ms;
    /// RunPodSandbox with the bridge plugin took 145 ms under load, to which mounting adds about
    /// 100 ms. PLEG's period is the kubelet's constant. A pull is 2 s, which a registry nearby
    /// gives for an image of some 100 MB; training images take longer, which tests say explicitly.
    pub const fn measured() -> Self {
        Self {
            relist: Duration::from_secs(1),
            sandbox: Duration::from_millis(245),
            image_pull: Duration::from_secs(2),
            start: Duration::from_millis(55),
            terminate: Duration::from_millis(100),
            kill: Duration::from_millis(34),
            cleanup: Duration::from_millis(100),
        }
    }

    /// No delays, to measure control plane and operator alone.
    pub const fn zero() -> Self {
        Self {
            relist: Duration::ZERO,
            sandbox: Duration::ZERO,
            image_pull: Duration::ZERO,
            start: Duration::ZERO,
            terminate: Duration::ZERO,
            kill: Duration::ZERO,
            cleanup: Duration::ZERO,
        }
    }
}
