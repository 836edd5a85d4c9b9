//! Accepted differences between hollow nodes and recordings, with reasons.

/// The difference in a scenario.
pub(super) struct Difference {
    pub(super) scenario: &'static str,
    /// Reason for accepting it.
    #[expect(dead_code, reason = "for people")]
    pub(super) reason: &'static str,
    /// All lines of the comparison. A line that no longer occurs fails the test.
    pub(super) lines: &'static [&'static str],
}

/// All accepted differences.
pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        scenario: "image-cannot-be-pulled",
        reason: "a hollow node retries a pull every 10 s and shows each failure at once, a kubelet \
            shows it at the next retry",
        lines: &[
            "p -12946 ms late: Pending a:waiting/ErrImagePull x0 | Containers=F(ContainersNotReady) \
                Initialized=T Ready=F(ContainersNotReady) Sandbox=T",
            "p + Pending a:waiting/ImagePullBackOff x0 | Containers=F(ContainersNotReady) \
                Initialized=T Ready=F(ContainersNotReady) Sandbox=T",
            "p + Pending a:waiting/ErrImagePull x0 | Containers=F(ContainersNotReady) Initialized=T \
                Ready=F(ContainersNotReady) Sandbox=T",
        ],
    },
    Difference {
        scenario: "restart-all-deleted-meanwhile",
        reason: "the kubelet reports the final phase before it looks for containers",
        lines: &[
            "p - deleted:5 Failed a:waiting/ContainerCreating x1 last/137/RestartingAllContainers/no-time \
                b:waiting/ContainerCreating x1 last/137/RestartingAllContainers/no-time | \
                Containers=F(PodFailed) Initialized=T Ready=F(PodFailed) Restarting=F(PodFailed) \
                Sandbox=F(PodSandboxNotReady)",
        ],
    },
    Difference {
        scenario: "sidecar-startup-probe",
        reason: "the kubelet reports a startup probe 20 ms before the readiness that follows",
        lines: &[
            "p - Pending s:running x0S a:waiting/PodInitializing x0 | Containers=F(ContainersNotReady) \
                Initialized=F(ContainersNotInitialized) Ready=F(ContainersNotReady) Sandbox=T",
        ],
    },
];
