//! Upstream's tests of native groups in Kubernetes 1.37.2, replayed with workloads of Lockstep.
//!
//! A unit of CPU upstream is an accelerator here. `docs/testing.md` has the table of the cases.

use std::fmt::Write as _;

pub mod podgroup;
pub mod preemption;

/// Kind of a [`Job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pod without a group.
    Pod,
    /// A workload whose members are evicted together.
    Gang,
    /// A gang whose members are evicted one by one.
    Single,
    /// A workload of policy `Basic`.
    Basic,
}

/// A pod or workload of a case.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the object.
    pub name: &'static str,
    /// Pod, or workload of some policy.
    pub kind: Kind,
    /// Name of its priority class.
    pub class: &'static str,
    /// Number of members.
    pub members: i32,
    /// Accelerators of each member.
    pub gpus: i32,
    /// Ordinal of the node that its node selector names.
    pub node: Option<usize>,
    /// JSON merge patch of the pod's spec, or empty.
    pub pod: &'static str,
    /// JSON merge patch of the workload's spec, or empty.
    pub workload: &'static str,
}

impl Job {
    /// Accelerators of each member, 1 by default.
    #[must_use]
    pub fn gpus(self, gpus: i32) -> Self {
        Self { gpus, ..self }
    }

    /// Keeps the job on one node.
    #[must_use]
    pub fn on(self, node: usize) -> Self {
        let node = Some(node);
        Self { node, ..self }
    }

    /// Changes the spec of the pods.
    #[must_use]
    pub fn pods(self, pod: &'static str) -> Self {
        Self { pod, ..self }
    }

    /// Changes the spec of the workload.
    #[must_use]
    pub fn with(self, workload: &'static str) -> Self {
        Self { workload, ..self }
    }
}

fn job(name: &'static str, kind: Kind, class: &'static str, members: i32) -> Job {
    Job {
        name,
        kind,
        class,
        members,
        gpus: 1,
        node: None,
        pod: "",
        workload: "",
    }
}

/// A pod without a group.
pub fn pod(name: &'static str, class: &'static str) -> Job {
    job(name, Kind::Pod, class, 1)
}

/// A workload whose members are evicted together.
pub fn gang(name: &'static str, class: &'static str, members: i32) -> Job {
    job(name, Kind::Gang, class, members)
}

/// A workload of policy `Basic`.
pub fn basic(name: &'static str, class: &'static str, members: i32) -> Job {
    job(name, Kind::Basic, class, members)
}

/// A gang whose members are evicted one by one.
pub fn single(name: &'static str, class: &'static str, members: i32) -> Job {
    job(name, Kind::Single, class, members)
}

/// Result of a case.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Jobs of which this number of members runs.
    pub runs: Vec<(&'static str, i32)>,
    /// Jobs of which no member is bound.
    pub waits: Vec<&'static str>,
    /// Earlier jobs of which this number of members has been evicted. No other member of an earlier
    /// job is evicted.
    pub evicted: Vec<(&'static str, i32)>,
    /// If true, exactly one job of `runs` runs, and the other waits.
    pub one_of: bool,
    /// What differs from upstream, and why. Empty: nothing.
    pub note: &'static str,
}

impl Ends {
    /// A result in which this number of members of each job runs.
    #[must_use]
    pub fn runs<const N: usize>(runs: [(&'static str, i32); N]) -> Self {
        let runs = runs.to_vec();
        Self {
            runs,
            ..Self::default()
        }
    }

    /// A result in which a job waits, and no job is evicted.
    #[must_use]
    pub fn waits(job: &'static str) -> Self {
        Self::default().and_waits(job)
    }

    /// This job waits, too.
    #[must_use]
    pub fn and_waits(mut self, job: &'static str) -> Self {
        self.waits.push(job);
        self
    }

    /// This number of members of each earlier job is evicted.
    #[must_use]
    pub fn evicts<const N: usize>(self, evicted: [(&'static str, i32); N]) -> Self {
        let evicted = evicted.to_vec();
        Self { evicted, ..self }
    }

    /// Only one of the jobs runs.
    #[must_use]
    pub fn one_of(self) -> Self {
        let one_of = true;
        Self { one_of, ..self }
    }

    /// What differs from upstream, and why.
    #[must_use]
    pub fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

/// What a case shows with one backend.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The case is replayed, with this result.
    Replayed(Ends),
    /// Why the case does not apply.
    NotApplicable(&'static str),
}

/// Tests of upstream, and the story that replays them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Names of upstream's tests.
    pub upstream: Vec<&'static str>,
    /// Number of nodes.
    pub nodes: i32,
    /// Accelerators of each node.
    pub gpus: i32,
    /// Number of racks.
    pub racks: i32,
    /// JSON of an object that is created first, or empty.
    pub object: &'static str,
    /// Jobs that run first.
    pub before: Vec<Job>,
    /// Jobs that are created together.
    pub then: Vec<Job>,
    /// With backend Both.
    pub both: Outcome,
    /// With backend Kubernetes.
    pub kubernetes: Outcome,
    /// The job that is deleted at last, and the jobs of which this number of members runs then.
    pub later: Option<(&'static str, Vec<(&'static str, i32)>)>,
}

/// A case with nodes of this size.
pub fn case(upstream: &'static str, nodes: i32, gpus: i32) -> Case {
    Case {
        upstream: vec![upstream],
        nodes,
        gpus,
        racks: 1,
        object: "",
        before: Vec::new(),
        then: Vec::new(),
        both: Outcome::Replayed(Ends::default()),
        kubernetes: Outcome::Replayed(Ends::default()),
        later: None,
    }
}

/// Tests that do not apply, whatever the backend.
pub fn not_applicable<const N: usize>(upstream: [&'static str; N], why: &'static str) -> Case {
    Case {
        upstream: upstream.to_vec(),
        both: Outcome::NotApplicable(why),
        kubernetes: Outcome::NotApplicable(why),
        ..case("", 0, 0)
    }
}

impl Case {
    /// Another test of upstream with the same story.
    #[must_use]
    pub fn also(mut self, upstream: &'static str) -> Self {
        self.upstream.push(upstream);
        self
    }

    /// Number of racks.
    #[must_use]
    pub fn racks(self, racks: i32) -> Self {
        Self { racks, ..self }
    }

    /// An object that is created first.
    #[must_use]
    pub fn object(self, object: &'static str) -> Self {
        Self { object, ..self }
    }

    /// Jobs that run first.
    #[must_use]
    pub fn before<const N: usize>(self, jobs: [Job; N]) -> Self {
        let before = jobs.into();
        Self { before, ..self }
    }

    /// Jobs that are created together.
    #[must_use]
    pub fn then<const N: usize>(self, jobs: [Job; N]) -> Self {
        let then = jobs.into();
        Self { then, ..self }
    }

    /// The result with each backend.
    #[must_use]
    pub fn ends(self, ends: Ends) -> Self {
        Self {
            both: Outcome::Replayed(ends.clone()),
            kubernetes: Outcome::Replayed(ends),
            ..self
        }
    }

    /// Another result with backend Both.
    #[must_use]
    pub fn both(self, ends: Ends) -> Self {
        let both = Outcome::Replayed(ends);
        Self { both, ..self }
    }

    /// Another result with backend Kubernetes.
    #[must_use]
    pub fn kubernetes(self, ends: Ends) -> Self {
        let kubernetes = Outcome::Replayed(ends);
        Self { kubernetes, ..self }
    }

    /// Why the case does not apply to backend Kubernetes.
    #[must_use]
    pub fn not_kubernetes(self, why: &'static str) -> Self {
        let kubernetes = Outcome::NotApplicable(why);
        Self { kubernetes, ..self }
    }

    /// At last, a job is deleted. Then these members run.
    #[must_use]
    pub fn later<const N: usize>(
        self,
        deleted: &'static str,
        runs: [(&'static str, i32); N],
    ) -> Self {
        let later = Some((deleted, runs.to_vec()));
        Self { later, ..self }
    }

    /// What the case shows with a backend.
    pub fn outcome(&self, backend: &str) -> &Outcome {
        if backend == "Both" {
            &self.both
        } else {
            &self.kubernetes
        }
    }
}

/// All cases by family.
pub fn families() -> [(&'static str, Vec<Case>); 3] {
    [
        (
            "`test/e2e/scheduling` and `test/e2e/apps/job.go`",
            podgroup::e2e(),
        ),
        (
            "`test/integration/scheduler/podgroup`",
            podgroup::integration(),
        ),
        (
            "`test/integration/scheduler/preemption/podgroup`",
            preemption::cases(),
        ),
    ]
}

fn cell(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Replayed(Ends { note: "", .. }) => "ok".into(),
        Outcome::Replayed(ends) => format!("differs: {}", ends.note),
        Outcome::NotApplicable(why) => format!("n/a: {why}"),
    }
}

/// The tables of the documentation.
pub fn tables() -> String {
    let mut page = String::new();
    for (family, cases) in families() {
        let _ = writeln!(page, "\n| {family} | Both | Kubernetes |\n|---|---|---|");
        for case in cases {
            let names = case.upstream.join("<br>");
            let (both, kubernetes) = (cell(&case.both), cell(&case.kubernetes));
            let _ = writeln!(page, "| {names} | {both} | {kubernetes} |");
        }
    }
    page
}
