//! Upstream's tests of preemption for groups.

use super::{Case, Ends, Job, basic, case, gang, not_applicable, pod};

const ELASTIC: &str = r#"{"scheduling": {"gang": {"minCount": 1}}}"#;
/// One rack for all members.
pub(super) const RACK: &str =
    r#"{"scheduling": {"topology": {"key": "topology.kubernetes.io/rack", "mode": "Required"}}}"#;
const BINDING_FIRST: &str = "minCount is the number of members, so none of a waiting gang is bound";
const COMPOSITE: &str = "Lockstep creates no CompositePodGroup. As victims of Lockstep: `scheduler/tests/suite/foreign.rs`";
const TOPOLOGY: &str =
    "scheduling.topology is refused: gate TopologyAwareWorkloadScheduling is alpha";
const WHOLE: &str = "an elastic gang is placed whole";
const FAKES: &str = "plugins of the test replace those of kube-scheduler";
const CLOSED: &str = "a node with a pod that the gang's anti-affinity matches is not used, and the pod is not evicted";

fn three_low() -> [Job; 3] {
    ["low-1", "low-2", "low-3"].map(|name| pod(name, "low"))
}

/// Integration tests.
pub fn cases() -> Vec<Case> {
    let mut cases = victims();
    cases.extend(partial());
    cases.extend(policies());
    cases.extend(filters());
    cases.extend(topologies());
    cases
}

fn victims() -> Vec<Case> {
    let three = [("low-1", 1), ("low-2", 1), ("low-3", 1)];
    vec![
        case("Full PodGroup Preemption", 1, 3)
            .before(three_low())
            .then([gang("high", "high", 3)])
            .ends(Ends::runs([("high", 3)]).evicts(three)),
        case("Full PodGroup Preemption for basic policy", 1, 3)
            .before(three_low())
            .then([basic("high", "high", 3)])
            .ends(Ends::runs([("high", 3)]).evicts(three)),
        not_applicable(
            ["Partial Preemption", "Partial Preemption with basic policy"],
            FAKES,
        ),
        case("PDB Violation Handling (Reprieve)", 1, 6)
            .object(
                r#"{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "foo"},
                    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "foo"}}}}"#,
            )
            .before([
                pod("foo-1", "low").gpus(2),
                pod("foo-2", "low").gpus(2),
                pod("low-3", "low").gpus(2),
            ])
            .then([gang("high", "high", 2)])
            .ends(Ends::runs([("high", 2)]).evicts([("low-3", 1)])),
        case("Multi-node Preemption", 2, 2)
            .before([
                pod("low-1", "low").on(0),
                pod("low-2", "low").on(0),
                pod("low-3", "low").on(1),
                pod("low-4", "low").on(1),
            ])
            .then([gang("high", "high", 4)])
            .ends(Ends::runs([("high", 4)]).evicts([("low-1", 1), ("low-2", 1), ("low-3", 1), ("low-4", 1)])),
        case("Insufficient Resources (No Preemption)", 1, 3)
            .before([pod("mid-1", "high"), pod("low-1", "low"), pod("low-2", "low")])
            .then([gang("high", "middle", 3)])
            .ends(Ends::waits("high")),
        case("Priority-based Victim Selection", 1, 3)
            .before([pod("mid-1", "middle"), pod("low-1", "low"), pod("low-2", "low")])
            .then([gang("high", "high", 2)])
            .ends(Ends::runs([("high", 2)]).evicts([("low-1", 1), ("low-2", 1)])),
        case("Preempt the whole PodGroup even if preempting a single Pod would suffice", 1, 3)
            .before([gang("low", "low", 3)])
            .then([gang("high", "high", 1)])
            .ends(Ends::runs([("high", 1)]).evicts([("low", 3)])),
        not_applicable(
            ["Preempt the whole basic PodGroup with a PodGroup disruption mode"],
            "Lockstep never creates basic with all. As a victim of Lockstep: `scheduler/tests/suite/foreign.rs`",
        ),
    ]
}

fn partial() -> Vec<Case> {
    let pods = [
        pod("p1", "low").on(0),
        pod("p2", "low").on(1),
        pod("p3", "high").on(2),
        pod("p4", "high").on(3),
    ];
    let two = [("p1", 1), ("p2", 1)];
    let groups = [gang("victim", "low", 2), gang("spared", "high", 2)];
    let other = [gang("victim", "middle", 2), pod("v3", "low")];
    vec![
        case("Gang scheduling: schedule as many pods as possible without preempting higher priority pods, but still more than minCount", 4, 1)
            .before(pods.clone())
            .then([gang("preemptor", "middle", 3).with(ELASTIC)])
            .both(
                Ends::runs([("preemptor", 1)])
                    .evicts([("p2", 1)])
                    .note("work is evicted for minCount members only"),
            )
            .kubernetes(Ends::waits("preemptor").note(WHOLE)),
        case("Gang scheduling: do not reprieve victim pod group of lower priority", 3, 1)
            .before(other.clone())
            .then([gang("preemptor", "high", 3)])
            .ends(Ends::runs([("preemptor", 3)]).evicts([("victim", 2), ("v3", 1)])),
        case("Gang scheduling: preempt a pod group victim but do not schedule full pod group", 4, 1)
            .before(groups.clone())
            .then([gang("preemptor", "middle", 3).with(ELASTIC)])
            .both(Ends::runs([("preemptor", 2)]).evicts([("victim", 2)]))
            .kubernetes(Ends::waits("preemptor").note(WHOLE)),
        case("Basic scheduling: schedule as many pods as possible without preempting higher priority pods", 4, 1)
            .before(pods)
            .then([basic("preemptor", "middle", 3)])
            .ends(Ends::runs([("preemptor", 2)]).evicts(two)),
        case("Basic scheduling: do not reprieve victim pod group of lower priority", 3, 1)
            .before(other)
            .then([basic("preemptor", "high", 3)])
            .ends(Ends::runs([("preemptor", 3)]).evicts([("victim", 2), ("v3", 1)])),
        case("Basic scheduling: preempt a pod group victim but do not schedule full pod group", 4, 1)
            .before(groups)
            .then([basic("preemptor", "middle", 3)])
            .ends(Ends::runs([("preemptor", 2)]).evicts([("victim", 2)])),
    ]
}

fn policies() -> Vec<Case> {
    vec![
        not_applicable(
            [
                "PodGroup with PreemptNever preemption policy does not perform preemption, with PodGroupPreemptionPolicy enabled",
                "PodGroup with PreemptLowerPriority preemption policy performs preemption, with PodGroupPreemptionPolicy enabled",
                "PodGroup with default preemption policy performs preemption, with PodGroupPreemptionPolicy enabled",
            ],
            "gate PodGroupPreemptionPolicy is alpha; admission fills the field from the class",
        ),
        case("PodGroup with PreemptNever preemption policy in all pods does not perform preemption, with PodGroupPreemptionPolicy disabled", 1, 3)
            .before(three_low())
            .then([gang("high", "patient", 3)])
            .ends(Ends::waits("high")),
    ]
}

/// Cases with requests, affinity, ports and spread.
fn filters() -> Vec<Case> {
    const PORT: &str = r#"{"containers": [{"name": "trainer", "image": "registry.example/trainer:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}}, "ports": [{"containerPort": 8080, "hostPort": 8080}]}]}"#;
    const AWAY: &str = r#"{"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "topologyKey": "kubernetes.io/hostname"}]}}}"#;
    const SPREAD: &str = r#"{"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "kubernetes.io/hostname",
        "nodeAffinityPolicy": "Ignore", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}]}"#;
    let one = Ends::runs([("preemptor", 2)]).evicts([("initial", 1)]);
    vec![
        case("Gang scheduling: preemption with node resources", 2, 2)
            .before([pod("initial", "low").gpus(2).on(0)])
            .then([gang("preemptor", "high", 2).gpus(2)])
            .ends(one.clone()),
        case("Gang scheduling: preemption with node resources, prioritizes reprieval of higher priority pods", 2, 2)
            .before([
                pod("initial", "low").on(0),
                pod("initial-2", "middle").on(0),
                pod("other", "high").on(1),
            ])
            .then([gang("preemptor", "high", 2)])
            .ends(one.clone()),
        not_applicable(
            ["Gang scheduling: preemption with pod level resources"],
            "accelerators are no pod-level resource",
        ),
        case("Gang scheduling: preemption with pod anti-affinity constraints", 2, 4)
            .before([pod("initial", "low").on(0)])
            .then([gang("preemptor", "high", 2).gpus(3).pods(AWAY)])
            .both(Ends::waits("preemptor").note(CLOSED))
            .kubernetes(one.clone()),
        case("Gang scheduling: preemption with pod node port", 2, 2)
            .before([pod("initial", "low").on(0).pods(PORT)])
            .then([gang("preemptor", "high", 2).pods(PORT)])
            .ends(one.clone()),
        case("Gang scheduling: preemption with pod topology spread constraints", 2, 8)
            .before([pod("initial", "low").on(0)])
            .then([gang("preemptor", "high", 2).on(0).pods(SPREAD)])
            .ends(one.clone()),
        case("Gang scheduling: preemption with pod topology spread constraints, single reprieve", 2, 8)
            .before([pod("initial", "low").on(0), pod("initial-2", "low").on(1)])
            .then([gang("preemptor", "high", 2).on(0).pods(SPREAD)])
            .ends(one),
        not_applicable(
            [
                "Reserve plugins are called during preemption simulation, so second pod fails",
                "TestPodGroupPreemption_NominatedNodeNameRespected",
            ],
            FAKES,
        ),
        not_applicable(
            [
                "Binding first before preemption for gang policy",
                "Binding first before preemption for basic policy",
            ],
            BINDING_FIRST,
        ),
        not_applicable(
            ["TestPodGroupPreemptionStatus"],
            "condition of kube-scheduler; `kube_scheduler_places_gangs_of_backend_kubernetes_whole` reads it",
        ),
    ]
}

fn topologies() -> Vec<Case> {
    let low = |name, node| pod(name, "low").on(node);
    let high = |name, node| pod(name, "high").on(node);
    let first = Ends::runs([("preemptor", 2)]).evicts([("low-1", 1), ("low-2", 1)]);
    vec![
        case("Topology-Aware Preemption: single topology domain", 2, 1)
            .before([low("low-1", 0), low("low-2", 1)])
            .then([gang("preemptor", "high", 2).with(RACK)])
            .both(first.clone())
            .not_kubernetes(TOPOLOGY),
        case("Topology-Aware Preemption: two topologies, only one eligible", 4, 1)
            .racks(2)
            .before([low("low-1", 0), low("low-2", 1), high("high-1", 2), high("high-2", 3)])
            .then([gang("preemptor", "high", 2).with(RACK)])
            .both(first)
            .not_kubernetes(TOPOLOGY),
        not_applicable(
            ["Topology-Aware Preemption: two topologies, both eligible, selects higher scored topology"],
            FAKES,
        ),
        case("Topology-Aware Preemption: insufficient capacity across all topologies, no preemption performed", 4, 1)
            .racks(2)
            .before([low("low-1", 0), high("high-1", 1), low("low-2", 2), high("high-2", 3)])
            .then([gang("preemptor", "high", 2).with(RACK)])
            .both(Ends::waits("preemptor"))
            .not_kubernetes(TOPOLOGY),
        not_applicable(["TestCompositePodGroupPreemption (22 cases)"], COMPOSITE),
    ]
}
