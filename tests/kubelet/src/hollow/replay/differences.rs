//! Where hollow nodes differ from what was recorded, and why they are to stay so.

/// The difference in one scenario.
pub(super) struct Difference {
    pub(super) scenario: &'static str,
    /// Why it stays.
    #[expect(dead_code, reason = "for people")]
    pub(super) reason: &'static str,
    /// The lines of the comparison, all of them: one that no longer occurs fails the test.
    pub(super) lines: &'static [&'static str],
}

/// Status of a pod of which nothing has been done yet.
const FIRST_OF_LOW: &str = "low + Pending a:waiting/ContainerCreating x0 | \
    Containers=F(ContainersNotReady) Initialized=T Ready=F(ContainersNotReady) Sandbox=F";
const FIRST_OF_TAINT: &str = "taint + Pending a:waiting/ContainerCreating x0 | \
    Containers=F(ContainersNotReady) Initialized=T Ready=F(ContainersNotReady) Sandbox=F";

/// All of them.
pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        scenario: "scheduler-preempts",
        reason: "the kubelet overtook its own first status, which of every other pod was written",
        lines: &[FIRST_OF_LOW],
    },
    Difference {
        scenario: "scheduler-refuses-pinned",
        reason: "the same",
        lines: &[FIRST_OF_TAINT],
    },
];
