//! Checks of `doctor` on a healthy installation, and with each possible fault.

use std::collections::BTreeSet;
use std::path::Path;

use chrono::TimeDelta;
use lockstep_api::native_group::{NativeSupport, PodField};
use lockstep_cli::agents::{AgentOfNode, AgentReport, AgentState};
use lockstep_cli::doctor::{CheckLevel, diagnose};
use lockstep_cli::doctor_facts::{
    AccountFacts, AutoscalerFacts, BudgetFacts, InstallFacts, LeaseFacts, ManagerPod, NodeFacts,
    ObjectFacts, POLICIES, PolicyFacts, RESOURCES, RightFacts,
};
use lockstep_cli::version::VersionReport;

use crate::support::{now, screen};

/// Address of the published files.
const PUBLISHED: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

fn manager(name: &str) -> ManagerPod {
    ManagerPod {
        namespace: "lockstep-system".into(),
        name: name.into(),
        ready: true,
        warning: None,
    }
}

fn policy(name: &str) -> PolicyFacts {
    PolicyFacts {
        name: name.into(),
        denies: true,
    }
}

fn agent(node: &str, state: AgentState) -> AgentOfNode {
    AgentOfNode {
        node: node.into(),
        state,
        members: 0,
        version: String::new(),
        runtime: String::new(),
        last_report: None,
        pod: None,
        since: None,
    }
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        restarts_all: true,
    }
}

fn objects(kind: &str, readable: usize) -> ObjectFacts {
    ObjectFacts {
        kind: kind.into(),
        read: Some((readable, Vec::new())),
    }
}

pub fn healthy() -> InstallFacts {
    InstallFacts {
        kubernetes: "v1.36.2".into(),
        served: RESOURCES.map(str::to_owned).into(),
        managers: Some(vec![manager("a"), manager("b")]),
        lease: Some(Some(LeaseFacts {
            holder: "a_1".into(),
            renewed: Some(now() - TimeDelta::seconds(2)),
            duration_seconds: 15,
        })),
        versions: VersionReport {
            client: "0.1.0".into(),
            ..VersionReport::default()
        },
        policies: Some(POLICIES.map(policy).into()),
        accounts: vec![AccountFacts {
            account: "system:serviceaccount:ops:m".into(),
            writes: Some(true),
        }],
        agents: Some(AgentReport {
            agents: vec![
                agent("n1", AgentState::Ready),
                agent("n2", AgentState::Ready),
            ],
        }),
        nodes: Some(vec![node("n1"), node("n2")]),
        namespace: "ml".into(),
        rights: vec![RightFacts {
            verbs: "logs (get pods/log)",
            allowed: true,
        }],
        objects: vec![objects("trainingworkloads", 5), objects("nodeagents", 2)],
        budgets: Some(Vec::new()),
        autoscaler: Some(AutoscalerFacts::default()),
        ..InstallFacts::default()
    }
}

#[test]
fn a_healthy_installation_has_a_line_for_each_check() {
    let diagnosis = diagnose(&healthy(), now());
    assert!(!diagnosis.failed());
    assert_eq!(
        screen(&diagnosis),
        "\
RESULT   CHECK         FOUND                                                      READ
ok       kubernetes    v1.36.2                                                    -
ok       definitions   5 resources are served as v1alpha1                         -
ok       managers      2 manager pods are ready in namespace lockstep-system      -
ok       lease         a_1 is the leader, lease renewed 2s ago                    -
ok       versions      no component differs from version 0.1.0                    -
ok       policies      3 policies are in force                                    -
ok       agents        2 agents are ready                                         -
ok       nodes         all 2 nodes declare RestartAllContainersOnContainerExits   -
ok       your rights   all commands are allowed in namespace ml                   -
ok       native        scheduling.k8s.io serves no pod groups                     -
ok       names         no other API group has a kind PodGroup or Workload         -
ok       autoscaler    off                                                        -
ok       kueue         not installed                                              -
ok       objects       workloads (5) and all other objects can be read            -
ok       budgets       no disruption budget selects members                       -
"
    );
}

#[test]
fn the_doctor_names_what_native_groups_lack() {
    let native = |versions: &[&str], pod_field, backend: Option<&str>| {
        found("native", |facts| {
            facts.native = NativeSupport {
                versions: versions.iter().map(|&v| v.to_owned()).collect(),
                pod_field,
            };
            facts.backend = backend.map(str::to_owned);
        })
    };
    for (versions, field, backend, level, part) in [
        (
            &["v1beta1"][..],
            PodField::Kept,
            Some("Kubernetes"),
            CheckLevel::Ok,
            "kube-scheduler places gangs",
        ),
        (
            &["v1beta1"],
            PodField::Dropped,
            Some("Kubernetes"),
            CheckLevel::Fail,
            "gangs are not placed",
        ),
        (
            &["v1beta1"][..],
            PodField::Kept,
            Some("Both"),
            CheckLevel::Ok,
            "each gang gets a native group",
        ),
        (
            &["v1beta1"],
            PodField::Kept,
            Some("Lockstep"),
            CheckLevel::Ok,
            "Both would create native groups",
        ),
        (
            &["v1beta1"],
            PodField::Kept,
            None,
            CheckLevel::Ok,
            "Both would create native groups",
        ),
        (
            &["v1beta1"],
            PodField::Dropped,
            Some("Both"),
            CheckLevel::Warn,
            "GenericWorkload is off",
        ),
        (
            &["v1alpha2"],
            PodField::Kept,
            Some("Both"),
            CheckLevel::Warn,
            "in v1alpha2, and Lockstep creates",
        ),
        (
            &["v1alpha2"],
            PodField::Kept,
            Some("Lockstep"),
            CheckLevel::Ok,
            "in v1alpha2, and Lockstep creates",
        ),
        (
            &[],
            PodField::Unknown,
            Some("Both"),
            CheckLevel::Warn,
            "serves no pod groups",
        ),
    ] {
        let (is, message) = native(versions, field, backend);
        assert_eq!(is, level, "{message}");
        assert!(message.contains(part), "{message}");
    }
}

/// Level and message of a check after a change of a healthy installation.
pub fn found(check: &str, change: impl FnOnce(&mut InstallFacts)) -> (CheckLevel, String) {
    let mut facts = healthy();
    change(&mut facts);
    let diagnosis = diagnose(&facts, now());
    let others = diagnosis.checks.iter().filter(|c| c.check != check);
    for other in others {
        assert_eq!(other.level, CheckLevel::Ok, "{check} changes {other:?}");
    }
    let check = diagnosis.checks.iter().find(|c| c.check == check).unwrap();
    let page = check.page.split('#').next().unwrap();
    let page = page.strip_prefix(PUBLISHED).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    assert!(root.join(page).is_file(), "{page}");
    (check.level, check.message.clone())
}

type Change = fn(&mut InstallFacts);

#[test]
fn each_thing_that_stops_lockstep_fails_its_check() {
    let cases: [(&str, Change, &str); 10] = [
        (
            "kubernetes",
            |f| f.kubernetes = "v1.29.1".into(),
            "has no admission policies",
        ),
        (
            "definitions",
            |f| f.served = BTreeSet::new(),
            "Lockstep is not installed: the API server serves none of its resources",
        ),
        (
            "definitions",
            |f| f.served.retain(|r| !r.starts_with("nodeagents")),
            "not served as v1alpha1: nodeagents.training.lockstep.dev",
        ),
        (
            "managers",
            |f| {
                f.managers
                    .iter_mut()
                    .flatten()
                    .for_each(|m| m.ready = false);
            },
            "0 of 2 manager pods are ready: see `kubectl logs -n lockstep-system a`",
        ),
        (
            "managers",
            |f| {
                let other = f.managers.iter_mut().flatten().next();
                other.unwrap().namespace = "team".into();
            },
            "manager pods are in namespaces lockstep-system, team: two installations",
        ),
        (
            "lease",
            |f| f.lease = Some(None),
            "no manager has become the leader",
        ),
        (
            "lease",
            |f| {
                f.lease
                    .iter_mut()
                    .flatten()
                    .for_each(|l| l.renewed = Some(now() - TimeDelta::seconds(90)));
            },
            "a_1 has not renewed the lease for 90s (limit 15s): no manager is the leader",
        ),
        (
            "policies",
            |f| {
                f.policies
                    .iter_mut()
                    .flatten()
                    .for_each(|p| p.denies = false);
            },
            "not in force: lockstep-members, lockstep-node-agents, lockstep-operator-objects;",
        ),
        (
            "policies",
            |f| {
                f.accounts.iter_mut().for_each(|a| a.writes = Some(false));
            },
            "the policies deny the writes of system:serviceaccount:ops:m: grant the verb `write` on operatorobjects and members of admission.lockstep.dev",
        ),
        (
            "objects",
            |f| f.objects[0].read = Some((4, vec!["trainingworkload ml/a: x".into()])),
            "1 object cannot be read and is ignored: trainingworkload ml/a: x",
        ),
    ];
    for (check, change, expected) in cases {
        let (level, message) = found(check, change);
        assert_eq!(level, CheckLevel::Fail, "{check}: {message}");
        assert!(message.contains(expected), "{check}: {message}");
    }
}

#[test]
fn a_manager_without_pods_runs_outside_the_cluster_while_the_lease_is_renewed() {
    let (level, message) = found("managers", |f| f.managers = Some(Vec::new()));
    assert_eq!(level, CheckLevel::Warn);
    assert_eq!(
        message,
        "no manager pod found, but a_1 renews the lease: the manager runs outside the cluster"
    );
    let mut facts = healthy();
    facts.managers = Some(Vec::new());
    facts.lease = Some(None);
    let checks = diagnose(&facts, now()).checks;
    let managers = checks.iter().find(|c| c.check == "managers").unwrap();
    assert_eq!(managers.level, CheckLevel::Fail);
    assert_eq!(
        managers.message,
        "no manager pod found: no workload is reconciled"
    );
}

/// Checks that each change gives a warning of the check with these words.
fn warn(cases: &[(&str, Change, &str)]) {
    for &(check, change, expected) in cases {
        let (level, message) = found(check, change);
        assert_eq!(level, CheckLevel::Warn, "{check}: {message}");
        assert!(message.contains(expected), "{check}: {message}");
    }
}

#[test]
fn budgets_that_count_replicas_are_a_warning() {
    warn(&[
        (
            "budgets",
            |f| f.budgets = None,
            "no permission to read disruption budgets or pods",
        ),
        (
            "budgets",
            |f| {
                let budget = |name: &str, expected, failed| BudgetFacts {
                    namespace: "ml".into(),
                    name: name.into(),
                    members: 8,
                    expected,
                    failed,
                };
                f.budgets = Some(vec![
                    budget("counts", 8, false),
                    budget("percent", 0, true),
                    budget("unavailable", 2, false),
                ]);
            },
            "ml/percent allows no eviction, ml/unavailable counts 2 of 8 members; write minAvailable with a number of pods",
        ),
    ]);
}

#[test]
fn what_is_lost_without_stopping_lockstep_is_a_warning() {
    warn(&[
        (
            "kubernetes",
            |f| f.kubernetes = "next".into(),
            "cannot parse version \"next\"",
        ),
        (
            "managers",
            |f| f.managers = Some(vec![manager("a")]),
            "1 manager pod is ready; run two",
        ),
        (
            "your rights",
            |f| f.rights.clear(),
            "did not return your permissions",
        ),
        (
            "kubernetes",
            |f| f.kubernetes = "v1.33.0".into(),
            "pods of failed gangs without a supervisor are recreated; upgrade to 1.35",
        ),
        (
            "objects",
            |f| f.objects[1].read = None,
            "skipped: no permission to read nodeagents",
        ),
        (
            "managers",
            |f| {
                f.managers
                    .iter_mut()
                    .flatten()
                    .take(1)
                    .for_each(|m| m.ready = false);
            },
            "1 of 2 manager pods is ready; not ready: a",
        ),
        (
            "versions",
            |f| f.versions.managers = Some(["9.9.9".to_owned()].into()),
            "manager 9.9.9 and kubectl-lockstep 0.1.0 differ",
        ),
        (
            "agents",
            |f| f.agents = Some(AgentReport { agents: Vec::new() }),
            "no node agents: failed gangs restart with new pods",
        ),
        (
            "agents",
            |f| {
                f.agents = Some(AgentReport {
                    agents: vec![
                        agent("n1", AgentState::Ready),
                        agent("n2", AgentState::NotReady),
                    ],
                });
            },
            "1 agent is ready; no ready agent on n2: members on these nodes are recreated",
        ),
        (
            "nodes",
            |f| {
                f.nodes
                    .iter_mut()
                    .flatten()
                    .take(1)
                    .for_each(|n| n.restarts_all = false);
            },
            "1 of 2 nodes declares",
        ),
        (
            "your rights",
            |f| f.rights[0].allowed = false,
            "not allowed in namespace ml: logs (get pods/log); -n checks another namespace",
        ),
        (
            "names",
            |f| f.other_groups = ["scheduling.volcano.sh".to_owned()].into(),
            "scheduling.volcano.sh has kinds of the same name",
        ),
    ]);
}

#[test]
fn nominations_are_lost_on_versions_before_1_34_only() {
    for (version, lost) in [("v1.30.4", true), ("v1.33.0", true), ("v1.34.1", false)] {
        let (level, message) = found("kubernetes", |f| f.kubernetes = version.into());
        assert_eq!(level, CheckLevel::Warn);
        assert_eq!(message.contains("nominations"), lost, "{message}");
    }
}

#[test]
fn agents_without_pods_and_pods_without_agents_are_no_agents() {
    for state in [AgentState::Silent, AgentState::Gone] {
        let (level, message) = found("agents", |f| {
            let agents = vec![agent("n1", AgentState::Ready), agent("n2", state)];
            f.agents = Some(AgentReport { agents });
        });
        assert_eq!(level, CheckLevel::Warn);
        assert_eq!(
            message,
            "1 agent is ready; no ready agent on n2: members on these nodes are recreated"
        );
    }
}

#[test]
fn checks_without_permission_are_listed_as_skipped_and_do_not_fail() {
    let facts = InstallFacts {
        managers: None,
        lease: None,
        policies: None,
        agents: None,
        nodes: None,
        objects: vec![ObjectFacts {
            kind: "trainingworkloads".into(),
            read: None,
        }],
        ..healthy()
    };
    let diagnosis = diagnose(&facts, now());
    assert!(!diagnosis.failed());
    let unseen = diagnosis
        .checks
        .iter()
        .filter(|c| c.message.starts_with("skipped: no permission to read "));
    assert_eq!(unseen.count(), 6);
}

#[test]
fn write_access_of_the_manager_is_omitted_if_the_review_is_forbidden() {
    let unknown = |f: &mut InstallFacts| f.accounts.iter_mut().for_each(|a| a.writes = None);
    let expected = (CheckLevel::Ok, "3 policies are in force".to_owned());
    assert_eq!(found("policies", unknown), expected);
}
