//! Upstream's tests of scheduling.

use super::{Case, Ends, basic, case, gang, not_applicable, pod, single};

const QUORUM: &str =
    "the manager creates all members of a gang together, and minCount is their number";
const FAKES: &str = "plugins of the test replace those of kube-scheduler";
const TOPOLOGY: &str =
    "scheduling.topology is refused: gate TopologyAwareWorkloadScheduling is alpha";
const COMPOSITE: &str = "Lockstep creates no CompositePodGroup: gate CompositePodGroup is alpha";
const JOB: &str = "concerns the objects of the Job controller";

/// End-to-end tests.
pub fn e2e() -> Vec<Case> {
    vec![
        not_applicable(
            ["GangScheduling should schedule pods only when quorum is reached"],
            QUORUM,
        ),
        case("GangScheduling should schedule pods with basic scheduling policy", 1, 4)
            .then([basic("group", "low", 2)])
            .ends(Ends::runs([("group", 2)])),
        not_applicable(
            [
                "Workload CRUD Tests Workload API availability",
                "Workload CRUD Tests PodGroup API availability",
            ],
            "concerns the API server only",
        ),
        case("workload-aware preemption should preempt entire group with All disruption mode by a pod group", 1, 3)
            .before([gang("victim", "low", 3)])
            .then([gang("preemptor", "high", 1)])
            .ends(Ends::runs([("preemptor", 1)]).evicts([("victim", 3)])),
        case("workload-aware preemption should preempt partial group with Single disruption mode by a pod group", 1, 3)
            .before([single("victim", "low", 3).with(ELASTIC)])
            .then([gang("preemptor", "high", 1)])
            .ends(Ends::runs([("preemptor", 1)]).evicts([("victim", 1)])),
        case("workload-aware preemption should preempt partial group with Single disruption mode by an individual pod", 1, 3)
            .before([single("victim", "low", 3).with(ELASTIC)])
            .then([pod("preemptor", "high")])
            .ends(Ends::runs([("preemptor", 1)]).evicts([("victim", 1)])),
        not_applicable(
            [
                "Job should compile a Workload and PodGroup for a gang-scheduled Job and wire its pods to the PodGroup",
                "Job should propagate an elastic gang minCount change to the Workload and PodGroup",
                "Job should create Workload and PodGroup for gang-eligible Job",
            ],
            JOB,
        ),
    ]
}

const ELASTIC: &str = r#"{"scheduling": {"gang": {"minCount": 1}}}"#;

fn four_low() -> [super::Job; 4] {
    ["low-1", "low-2", "low-3", "low-4"].map(|name| pod(name, "low"))
}

/// Integration tests.
pub fn integration() -> Vec<Case> {
    let mut cases = gangs();
    cases.extend(preempting());
    cases.extend(others());
    cases
}

fn gangs() -> Vec<Case> {
    vec![
        case("gang schedules when pod group and resources are available", 1, 4)
            .then([gang("gang", "low", 3)])
            .ends(Ends::runs([("gang", 3)])),
        not_applicable(
            ["any available pod group members get scheduled"],
            "no member is added to a running gang without a restart",
        ),
        not_applicable(["gang waits for quorum to start, then schedules"], QUORUM),
        case("gang waits for pod group, then for resources, then schedules", 1, 4)
            .before([pod("blocker", "low").gpus(2)])
            .then([gang("gang", "low", 3)])
            .ends(Ends::waits("gang"))
            .later("blocker", [("gang", 3)]),
        case("minCount is scheduled, but one pod from a gang remain unschedulable until the blocked resources are released", 1, 4)
            .before([pod("blocker", "low")])
            .then([gang("gang", "low", 4).with(r#"{"scheduling": {"gang": {"minCount": 3}}}"#)])
            .both(Ends::runs([("gang", 3)]))
            .kubernetes(Ends::waits("gang").note("an elastic gang is placed whole"))
            .later("blocker", [("gang", 4)]),
        case("two gangs competing for the same resources shouldn't deadlock, reversed order", 1, 4)
            .then([gang("other", "low", 3), gang("gang", "low", 3)])
            .ends(Ends::runs([("other", 3), ("gang", 3)]).one_of()),
        case("two gangs competing for the same resources shouldn't deadlock", 1, 4)
            .then([gang("gang", "low", 3), gang("other", "low", 3)])
            .ends(Ends::runs([("gang", 3), ("other", 3)]).one_of()),
        case("pod group interleaving with an individual pod shouldn't deadlock nor livelock, and the individual pod gets scheduled", 1, 4)
            .then([pod("blocker", "low").gpus(2), gang("gang", "low", 3)])
            .ends(Ends::runs([("blocker", 1)]).and_waits("gang")),
        case("basic group schedules when pod group and resources are available, without gang enforcement", 1, 4)
            .then([basic("group", "low", 3)])
            .ends(Ends::runs([("group", 3)])),
        case("basic group waits for pod group, part of it waits for resources, then schedules", 1, 4)
            .before([pod("blocker", "low").gpus(2)])
            .then([basic("group", "low", 3)])
            .ends(Ends::runs([("group", 2)]))
            .later("blocker", [("group", 3)]),
    ]
}

fn preempting() -> Vec<Case> {
    vec![
        case("basic group schedules with workload-aware preemption", 1, 4)
            .before([pod("blocker", "low").gpus(2)])
            .then([basic("group", "high", 4)])
            .ends(Ends::runs([("group", 4)]).evicts([("blocker", 1)])),
        case("gang schedules with workload-aware preemption", 1, 4)
            .also("TestWorkloadAwarePreemptionInvocation")
            .before(four_low())
            .then([gang("gang", "high", 4)])
            .ends(Ends::runs([("gang", 4)]).evicts([
                ("low-1", 1),
                ("low-2", 1),
                ("low-3", 1),
                ("low-4", 1),
            ])),
        case(
            "gang schedules with partial workload-aware preemption",
            1,
            4,
        )
        .before([
            pod("very-low-1", "low"),
            pod("very-low-2", "low"),
            pod("low-1", "middle"),
            pod("low-2", "middle"),
        ])
        .then([gang("mid", "high", 2)])
        .ends(Ends::runs([("mid", 2)]).evicts([("very-low-1", 1), ("very-low-2", 1)])),
        case("tas gang with constraint uses workload preemption", 1, 4)
            .before([
                pod("very-low-1", "low"),
                pod("very-low-2", "low"),
                pod("low-1", "middle"),
                pod("low-2", "middle"),
            ])
            .then([gang("mid", "high", 2).with(super::preemption::RACK)])
            .both(Ends::runs([("mid", 2)]).evicts([("very-low-1", 1), ("very-low-2", 1)]))
            .not_kubernetes(TOPOLOGY),
    ]
}

fn others() -> Vec<Case> {
    vec![
        not_applicable(
            [
                "gang pods are unschedulable due to lack of quorum, then scheduled when minCount is decreased",
                "gang pods are unschedulable due to lack of space, then scheduled when minCount is decreased",
                "gang pods are unschedulable due to lack of quorum, and remain unschedulable without triggering reschedule when minCount is increased",
            ],
            QUORUM,
        ),
        case("TestPodGroupSchedulingWithPodAntiAffinity: anti-affinity honored across the cycle on a multi-topology cluster", 2, 2)
            .then([gang("gang", "low", 2).pods(APART)])
            .ends(Ends::runs([("gang", 2)])),
        case("TestPodGroupSchedulingWithPodAntiAffinity: anti-affinity keeps the group unschedulable on a single-topology cluster", 1, 2)
            .then([gang("gang", "low", 2).pods(APART)])
            .ends(Ends::waits("gang")),
        not_applicable(
            [
                "TestPodGroupSchedulingWithReadWriteOncePodPVC: two pods sharing a ReadWriteOncePod PVC keep the group unschedulable",
                "TestPodGroupSchedulingWithReadWriteOncePodPVC: two pods with distinct ReadWriteOncePod PVCs are scheduled",
            ],
            "the pods of one template share its claims; gangs with a shared ReadWriteOncePod claim are held (`model/src/volumes.rs`)",
        ),
        not_applicable(
            [
                "TestPostFilterNotCalled",
                "TestPodGroupPostFilterIteration",
                "TestPodGroupCycleStatePreserved",
            ],
            FAKES,
        ),
        not_applicable(
            [
                "TestPodGroupQueueing",
                "TestPodGroupSequentialQueueing",
                "TestPodGroupRequeueRemainingOnSchedulingSuccess",
            ],
            "reads the internal queue of kube-scheduler",
        ),
        not_applicable(
            [
                "TestTopologyAwareSchedulingWithGangPolicy",
                "TestTopologyAwareSchedulingWithBasicPolicy",
            ],
            "native groups of Lockstep have no constraints: gate TopologyAwareWorkloadScheduling is alpha",
        ),
        not_applicable(
            [
                "TestCPGScheduling (7 cases)",
                "TestPodGroupDependentRequiredValidation",
                "TestCPGQueueing (5 cases)",
                "TestCPGTopologyAwareScheduling",
                "TestCPGTopologyAwareSchedulingWorkloadAwarePreemption",
            ],
            COMPOSITE,
        ),
    ]
}

const APART: &str = r#"{"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"labelSelector": {"matchLabels": {"training.lockstep.dev/workload": "gang"}}, "topologyKey": "kubernetes.io/hostname"}]}}}"#;
