//! Installations under other names: with a user's overlay and by OLM. The same story runs in each
//! installation: in `make test` in one of both kinds, in `make test-installations` in the others, too.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockstep_api::{PodGroup, names};
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::install::{self, Method};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::Process;
use lockstep_cluster::roles::{Grant, shipped, uncovered, unused};
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{Cluster, eventually, http, scenario};
use lockstep_e2e::{IN_TURN, installed, patient};
use serde_json::json;

/// A gang runs, restarts in place, and is preempted by a more important gang. Only the manager
/// writes its objects.
pub async fn story(t: &Scenario<'_>) -> Result<()> {
    t.create(gang("g", 2, 8, json!({}))).await?;
    let pods = t.running("g").await?;
    t.exit(pods.first().context("a pod")?, 3).await?;
    t.restarted("g", 1).await?;
    let group = t.pod_group("g").await?.name_any();
    t.grant_all("mighty").await?;
    // In this installation, the manager's account in the shipped manifests has no rights.
    let shipped = "sa:lockstep-system:lockstep-manager";
    let place = t.cluster.method.manager();
    let own = format!("sa:{}:{}", place.namespace, place.name);
    if shipped != own {
        let (namespace, name) = install::MANAGER;
        // The namespace can be that of the agents.
        let _ = t.cluster.kubectl(&["create", "namespace", namespace]).await;
        let account = ["create", "serviceaccount", name, "-n", namespace];
        t.cluster.kubectl(&account).await?;
    }
    for token in ["user:mighty", shipped].into_iter().filter(|t| *t != own) {
        let client = t.cluster.client_as(token).await?;
        let groups: Api<PodGroup> = Api::namespaced(client, &t.name);
        let forged = Patch::Merge(json!({"status": {"preemption": null}}));
        let answer = groups
            .patch_status(&group, &PatchParams::default(), &forged)
            .await;
        ensure!(answer.is_err(), "{token} has written");
        let said = answer.err().map(|e| e.to_string()).unwrap_or_default();
        ensure!(
            token.starts_with("sa:") || said.contains("only Lockstep's manager writes"),
            "{said}"
        );
    }
    preempted(t).await
}

/// A more important gang preempts and gets all nodes.
async fn preempted(t: &Scenario<'_>) -> Result<()> {
    let before = uids(&t.pods("g").await?);
    let high = json!({"priorityClassName": "high"});
    t.create(gang("urgent", 2, 8, high)).await?;
    t.running("urgent").await?;
    t.workload("g", "to say that it was preempted", |w| {
        let times = w.status.as_ref().map(|s| s.preemptions);
        ensure!(times == Some(1), "{times:?}");
        Ok(())
    })
    .await?;
    let left = uids(&t.pods("g").await?);
    ensure!(left.iter().all(|pod| !before.contains(pod)), "{left:?}");
    Ok(())
}

pub fn shape() -> Shape {
    Shape {
        nodes: 2,
        ..Shape::default()
    }
}

/// Output of `doctor` if managers are processes instead of pods.
pub async fn doctor_finds(cluster: &Cluster, agents: &str) -> Result<()> {
    let said = cluster.lockstep(&["doctor"]).await?;
    for line in [
        "the manager runs outside the cluster",
        "3 policies are in force",
        " is the leader, lease renewed ",
        agents,
    ] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    ensure!(!said.contains("FAIL"), "{said}");
    Ok(())
}

/// Requests of the running accounts use existing priority levels.
pub async fn flow_control_is_for(cluster: &Cluster, accounts: &[(&str, String)]) -> Result<()> {
    let client = cluster.client().await?;
    let levels: Api<PriorityLevelConfiguration> = Api::all(client.clone());
    let schemas: Api<FlowSchema> = Api::all(client);
    let ours = ListParams::default().labels("app.kubernetes.io/name=lockstep");
    let ours = schemas.list(&ours).await?;
    let mut found = BTreeSet::new();
    for schema in &ours {
        let spec = &schema.spec;
        let level = &spec.priority_level_configuration.name;
        // Levels that exist in every cluster.
        if !["leader-election", "workload-high"].contains(&level.as_str()) {
            levels.get(level).await?;
        }
        let subjects = spec.rules.iter().flatten().flat_map(|r| &r.subjects);
        let accounts = subjects.filter_map(|s| s.service_account.clone());
        found.extend(accounts.map(|a| (a.namespace, a.name)));
    }
    let expected = accounts.iter().map(|(n, a)| ((*n).to_owned(), a.clone()));
    ensure!(found == expected.collect(), "{found:?}");
    let [(manager, manager_name), (agents, agent_name)] = accounts else {
        anyhow::bail!("a manager and its agents: {accounts:?}");
    };
    let manager_token = format!("sa:{manager}:{manager_name}");
    let agent_token = format!("sa:{agents}:{agent_name}:node-1");
    let lease = names::LEASE;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{manager}/leases/{lease}");
    let training = "/apis/training.lockstep.dev/v1alpha1/namespaces/default";
    let status = format!("{training}/trainingworkloads/none/status");
    let order = format!("{training}/restartorders/none");
    let pods = "/api/v1/pods?limit=1";
    for (token, method, path, level) in [
        (&manager_token, "GET", lease.as_str(), "leader-election"),
        (&manager_token, "PATCH", &status, "lockstep-decisions"),
        (&manager_token, "PATCH", &order, "lockstep-decisions"),
        (&manager_token, "GET", &order, "workload-high"),
        (&manager_token, "GET", pods, "workload-high"),
        (&agent_token, "GET", pods, "lockstep-agents"),
    ] {
        eventually("the level of a request", PATIENCE, async || {
            let found = level_of(cluster, token, method, path).await?;
            ensure!(found.ends_with(level), "{token} {method} {path}: {found}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Priority level of the server's answer, whatever the answer is.
async fn level_of(cluster: &Cluster, token: &str, method: &str, path: &str) -> Result<String> {
    let request = ::http::Request::builder().method(method).uri(path);
    let request = request.body(kube::client::Body::empty())?;
    let answer = cluster.client_as(token).await?.send(request).await?;
    let uid = answer.headers().get("X-Kubernetes-PF-PriorityLevel-UID");
    let uid = uid.context("a server without priority levels")?.to_str()?;
    let levels: Api<PriorityLevelConfiguration> = Api::all(cluster.client().await?);
    let levels = levels.list(&ListParams::default()).await?;
    let found = levels.iter().find(|l| l.uid().as_deref() == Some(uid));
    Ok(found.context("a level of that UID")?.name_any())
}

async fn metric(manager: &Manager, policy: &str) -> Result<String> {
    let text = http::get(&manager.metrics, "/metrics").await?;
    let line = format!("lockstep_policy_check_failed{{policy=\"{policy}\"}} ");
    let value = text.lines().find_map(|l| l.strip_prefix(&line));
    Ok(value.context("no such metric")?.to_owned())
}

/// Names of a user's overlay: prefix, namespace of the manager, namespace of the agents.
pub const OVERLAYS: [[&str; 3]; 3] = [
    ["x-", "ops", "ops-agents"],
    ["", "gangs", "lockstep-system"],
    ["platform-team-training-", "kube-system-of-gangs", "a"],
];

/// Namespaces for installations by OLM: OLM's default for all namespaces, and two of the user's.
/// Differ from the namespace in the manifests.
pub const BY_OLM: [&str; 3] = ["operators", "ml-platform", "gang-training"];

#[tokio::test(flavor = "multi_thread")]
async fn under_a_prefix_and_other_namespaces_the_manager_writes_and_strangers_do_not() -> Result<()>
{
    by_overlay(OVERLAYS[0]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-installations"]
async fn agents_in_the_namespace_that_the_manager_has_elsewhere_change_nothing() -> Result<()> {
    by_overlay(OVERLAYS[1]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-installations"]
async fn long_and_short_names_change_nothing() -> Result<()> {
    by_overlay(OVERLAYS[2]).await
}

async fn by_overlay([prefix, namespace, agents]: [&str; 3]) -> Result<()> {
    let method = Method::Renamed {
        prefix: prefix.into(),
        manager: namespace.into(),
        agents: agents.into(),
    };
    let cluster = installed(&format!("overlay-{namespace}"), patient(), method).await?;
    if !cluster.is_ours("an installation of our own") {
        return Ok(());
    }
    let manager = cluster.start_manager("a").await?;
    for policy in ["lockstep-operator-objects", "lockstep-members"] {
        ensure!(metric(&manager, policy).await? == "0", "{policy}");
    }
    let accounts = [
        (namespace, format!("{prefix}lockstep-manager")),
        (agents, format!("{prefix}lockstep-agent")),
    ];
    flow_control_is_for(&cluster, &accounts).await?;
    scenario(&cluster, "renamed", &shape(), async |t| {
        story(t).await?;
        doctor_finds(t.cluster, "2 agents are ready").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_the_policies_refuse_is_not_ready_and_says_why() -> Result<()> {
    IN_TURN
        .run("rights of the test's own", patient(), async |cluster| {
            is_refused(cluster).await?;
            let own = ["delete", "clusterrole,clusterrolebinding", "all-but-one"];
            cluster.kubectl(&own).await.map(drop)
        })
        .await
}

async fn is_refused(cluster: &Cluster) -> Result<()> {
    // Rights to write all objects, but without the right that the policies require.
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client().await?);
    bindings
        .delete("lockstep-manager", &DeleteParams::default())
        .await?;
    let account = "--serviceaccount=lockstep-system:lockstep-manager";
    let all: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "all-but-one"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]}],
    }))?;
    let roles: Api<ClusterRole> = Api::all(cluster.client().await?);
    roles.create(&PostParams::default(), &all).await?;
    let binding = [
        "create",
        "clusterrolebinding",
        "all-but-one",
        "--clusterrole=all-but-one",
        account,
    ];
    cluster.kubectl(&binding).await?;
    // The API server's authorizer watches roles and bindings.
    let manager = "--as=system:serviceaccount:lockstep-system:lockstep-manager";
    let may = async |verb: &str, resource: &str| {
        let question = ["auth", "can-i", verb, resource, manager];
        cluster.kubectl(&question).await.is_ok()
    };
    eventually("the rights to take effect", PATIENCE, async || {
        let all = may("create", "pods").await;
        let one = may("write", "operatorobjects.admission.lockstep.dev").await;
        ensure!(all && !one, "pods: {all}, operatorobjects: {one}");
        Ok(())
    })
    .await?;
    let manager = cluster.launch_manager("a").await?;
    eventually(
        "the manager to say why it is not ready",
        PATIENCE,
        async || {
            let said = http::get(&manager.health, "/readyz")
                .await
                .err()
                .context("ready")?;
            let said = format!("{said:#}");
            for part in [
                "an admission policy refuses writes of this process",
                "lockstep-operator-objects",
                "lacks the right to write operatorobjects.admission.lockstep.dev",
            ] {
                ensure!(said.contains(part), "{part}: {said}");
            }
            Ok(())
        },
    )
    .await?;
    ensure!(metric(&manager, "lockstep-operator-objects").await? == "1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn olm_installs_the_bundle_in_a_user_namespace_with_gangs_and_owned_agents() -> Result<()> {
    by_olm(BY_OLM[1]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-installations"]
async fn so_it_does_in_the_namespace_that_olm_has_for_all() -> Result<()> {
    by_olm(BY_OLM[0]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-installations"]
async fn so_it_does_in_another_one() -> Result<()> {
    by_olm(BY_OLM[2]).await
}

/// Socket of the runtime in installations by OLM, different from the shipped socket.
const SOCKET: &str = "unix:///run/crio/crio.sock";

/// Starts the program that applies the components of a bundle, with node agents, and waits until it
/// is done.
pub async fn with_agents(cluster: &Cluster, namespace: &str) -> Result<(Process, DaemonSet)> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client().await?, namespace);
    let endpoint = [("LOCKSTEP_AGENT_RUNTIME_ENDPOINT", SOCKET)];
    let mut components = cluster
        .start_deployment("lockstep-components", &endpoint)
        .await?;
    let set = eventually("the agents to be applied", PATIENCE, async || {
        ensure!(components.ended()?.is_none(), "{}", components.log_tail(20));
        sets.get("lockstep-agent").await.context("no DaemonSet yet")
    })
    .await?;
    Ok((components, set))
}

async fn by_olm(namespace: &str) -> Result<()> {
    let name = format!("olm-{namespace}");
    let cluster = installed(&name, patient(), Method::Olm(namespace.into())).await?;
    if !cluster.is_ours("an installation of our own") {
        return Ok(());
    }
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client().await?, namespace);
    let (components, set) = with_agents(&cluster, namespace).await?;
    let owner = set.owner_references().first().context("an owner")?;
    ensure!(owner.name == "lockstep-components", "{owner:?}");
    let text = serde_json::to_value(&set)?["spec"]["template"]["spec"].to_string();
    ensure!(
        text.contains(SOCKET) && !text.contains("containerd"),
        "{text}"
    );

    let accounts = ["lockstep-manager", "lockstep-agent"].map(|a| (namespace, a.to_owned()));
    flow_control_is_for(&cluster, &accounts).await?;

    let _manager = cluster.start_manager("a").await?;
    scenario(&cluster, "olm", &shape(), async |t| {
        story(t).await?;
        doctor_finds(t.cluster, "2 agents are ready").await?;
        // Before the deletion of its namespace, in which writes are then refused.
        for account in [MANAGER, AGENT] {
            rights_suffice(t.cluster, namespace, account)?;
        }
        Ok(())
    })
    .await?;
    components.terminate(PATIENCE).await?;

    // Without a socket, the agents are removed.
    let _components = cluster.start_deployment("lockstep-components", &[]).await?;
    eventually("the agents to be taken away", PATIENCE, async || {
        let left = sets.get_opt("lockstep-agent").await?;
        ensure!(
            left.is_none_or(|s| s.metadata.deletion_timestamp.is_some()),
            "still there"
        );
        Ok(())
    })
    .await?;
    let mut idle = rights_suffice(&cluster, namespace, COMPONENTS)?;
    // Creation by server-side apply needs this right too, and is logged as a patch.
    idle.retain(|g| g.verb != "create");
    ensure!(idle.is_empty(), "no call used {idle:#?}");
    Ok(())
}

/// An account of an installation by OLM: path of its roles below `config/`, and their names.
type Account = (&'static str, &'static str, &'static [&'static str]);

const COMPONENTS: Account = (
    "lockstep-components",
    "olm/components_role.yaml",
    &["lockstep-components"],
);
const MANAGER: Account = (
    "lockstep-manager",
    "manager",
    &["lockstep-manager", "lockstep-leader-election"],
);
const AGENT: Account = ("lockstep-agent", "components/agent", &["lockstep-agent"]);

/// Checks that no request of the account was forbidden. Returns the rights that it did not use.
fn rights_suffice(
    cluster: &Cluster,
    namespace: &str,
    (account, path, roles): Account,
) -> Result<Vec<Grant>> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let mut refused = cluster.audit.writes_by(&user)?;
    // Dry runs test the policies.
    refused.retain(|w| w.code == 403 && !w.dry_run);
    ensure!(refused.is_empty(), "{refused:#?}");
    let calls = cluster.audit.calls_by(&user)?;
    ensure!(!calls.is_empty(), "{account} has made no call");
    let granted = shipped(path, roles)?;
    let missing = uncovered(&granted, &calls);
    ensure!(missing.is_empty(), "{account}: no role covers {missing:#?}");
    Ok(unused(&granted, &calls))
}
