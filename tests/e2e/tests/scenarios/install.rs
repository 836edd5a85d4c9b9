//! Installed manifests, policies and roles.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockstep_api::names::labels;
use lockstep_api::{NodeAgent, PodGroup, TrainingWorkload};
use lockstep_cluster::cluster::Cluster;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::{IN_TURN, cluster, patient};
use serde_json::{Value, json};

use crate::console::blocks;

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_the_fields_of_a_workload() -> Result<()> {
    let fields = cluster()
        .await?
        .kubectl(&[
            "explain",
            "trainingworkload.spec.failurePolicy",
            "--recursive",
        ])
        .await?;
    ensure!(
        fields.contains("inPlace") && fields.contains("maxRestarts"),
        "{fields}"
    );
    let field = cluster()
        .await?
        .kubectl(&["explain", "tw.spec.groups.replicas"])
        .await?;
    ensure!(
        field.contains("FIELD: replicas <integer>") && field.contains("DESCRIPTION"),
        "{field}"
    );
    Ok(())
}

/// The definition of workloads as before the field `levels` of the topology.
fn without_levels(definition: &CustomResourceDefinition) -> Result<Value> {
    let mut versions = json!(definition.spec.versions);
    let spec = &mut versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let choice =
        |values: [&str; 2]| json!({"type": "string", "enum": values, "default": values[0]});
    spec["properties"]["scheduling"]["properties"]["topology"] = json!({
        "type": "object", "required": ["key"], "properties": {
            "key": {"type": "string", "minLength": 1, "maxLength": 317},
            "mode": choice(["Required", "Preferred"]), "scope": choice(["Gang", "Replica"])}});
    let rules = spec["x-kubernetes-validations"].as_array_mut();
    for rule in rules.context("rules")? {
        if rule["rule"]
            .as_str()
            .is_some_and(|r| r.contains("topology.levels"))
        {
            rule["rule"] = json!(
                "oldSelf.suspend || self.suspend || (has(self.scheduling.topology) == has(oldSelf.scheduling.topology) && (!has(self.scheduling.topology) || self.scheduling.topology == oldSelf.scheduling.topology))"
            );
        }
    }
    Ok(json!({"spec": {"versions": versions}}))
}

/// A running gang that was stored with one level continues when the definition gets levels.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_workload_with_one_level_survives_an_upgrade_of_the_definition() -> Result<()> {
    IN_TURN.run("other definitions", patient(), upgrade).await
}

async fn upgrade(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let mut manager = cluster.start_manager("a").await?;
    scenario(cluster, "stored", &Shape::default(), async |t| {
        const NAME: &str = "trainingworkloads.training.lockstep.dev";
        let definitions: Api<CustomResourceDefinition> = Api::all(t.client.clone());
        let definition = definitions.get(NAME).await?;
        let apply = async |patch: Value| {
            let patch = Patch::Merge(patch);
            definitions
                .patch(NAME, &PatchParams::default(), &patch)
                .await
        };
        let rack = json!({"key": "topology.kubernetes.io/rack"});
        let of = |name: &str, topology: Value| {
            gang(name, 2, 8, json!({"scheduling": {"topology": topology}}))
        };
        let several: TrainingWorkload =
            serde_json::from_value(of("several", json!({"levels": [rack]})))?;
        let serves_levels = async |served: bool| {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            eventually("the changed definition", PATIENCE, async || {
                let answer = t.workloads().create(&dry_run, &several).await;
                ensure!(answer.is_ok() == served, "{answer:?}");
                Ok(())
            })
            .await
        };
        apply(without_levels(&definition)?).await?;
        serves_levels(false).await?;
        t.create(of("stored", rack.clone())).await?;
        let before = t.running("stored").await?;
        apply(json!({"spec": {"versions": definition.spec.versions}})).await?;
        serves_levels(true).await?;
        // The API server reads objects for open watches by the old definition. An upgrade replaces the
        // manager, and its watches.
        manager.process.kill()?;
        let _manager = cluster.start_manager("b").await?;
        t.patch_spec("stored", json!({"scheduling": {"timeoutSeconds": 60}}))
            .await?;
        let other = json!({"scheduling": {"topology": {"mode": "Preferred"}}});
        let refused = t.patch_spec("stored", other).await;
        let refused = refused
            .err()
            .context("the topology of a running gang changed")?;
        ensure!(
            format!("{refused:#}").contains("immutable while running"),
            "{refused:#}"
        );
        let same = json!({"levels": [rack], "key": null, "mode": null, "scope": null});
        t.patch_spec("stored", json!({"scheduling": {"topology": same}}))
            .await?;
        t.exit(&before[0], 3).await?;
        t.restarted("stored", 1).await?;
        let after = t.running("stored").await?;
        ensure!(
            uids(&before) == uids(&after),
            "an equal topology replaced the pods"
        );
        Ok(())
    })
    .await
}

/// The agents' service account. A node after another colon adds the node claim to its token.
const AGENT: &str = "sa:lockstep-agent:lockstep-agent";

/// A client of `NodeAgents` as an agent, with the claim of a node or without.
async fn agents_by(cluster: &Cluster, node: Option<&str>) -> Result<Api<NodeAgent>> {
    let token = node.map_or(AGENT.to_owned(), |node| format!("{AGENT}:{node}"));
    Ok(Api::all(cluster.client_as(&token).await?))
}

/// Checks that the admission policy refused the request, instead of RBAC.
fn refused_by_policy<T>(answer: kube::Result<T>, what: &str) -> Result<()> {
    let refused = answer
        .err()
        .with_context(|| format!("{what} was allowed"))?;
    let by_policy = refused.to_string().contains("only the agent of a node");
    ensure!(by_policy, "{what}: {refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "agents write their status whole")]
async fn an_agent_writes_the_object_of_its_own_node_only() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("tokens of other identities") {
        return Ok(());
    }
    let named = |name: &str| NodeAgent::new(name, lockstep_api::node_agent::NodeAgentSpec {});
    let post = PostParams::default();
    for node in [None, Some("other")] {
        let made = agents_by(cluster, node).await?;
        refused_by_policy(made.create(&post, &named("own")).await, "a foreign node")?;
    }
    let own = agents_by(cluster, Some("own")).await?;
    own.create(&post, &named("own")).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"mine": "now"}}}));
    let params = PatchParams::default();
    let mut object = own.patch("own", &params, &label).await?;
    object.status.get_or_insert_default().agent_version = "1".into();
    let object = own.replace_status("own", &post, &object).await?;
    for node in [None, Some("other")] {
        let agents = agents_by(cluster, node).await?;
        let changed = agents.patch("own", &params, &label).await;
        refused_by_policy(changed, "a foreign object")?;
        let written = agents.replace_status("own", &post, &object).await;
        refused_by_policy(written, "a foreign status")?;
    }
    let admin: Api<NodeAgent> = Api::all(cluster.client().await?);
    admin.delete("own", &DeleteParams::default()).await?;
    Ok(())
}

/// Shipped roles do not let agents delete a `NodeAgent`, but other roles can.
#[tokio::test(flavor = "multi_thread")]
async fn no_agent_deletes_or_changes_what_is_not_its_own_even_with_a_role_for_it() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("tokens of other identities") {
        return Ok(());
    }
    let named = |name: &str| NodeAgent::new(name, lockstep_api::node_agent::NodeAgentSpec {});
    agents_by(cluster, Some("kept"))
        .await?
        .create(&PostParams::default(), &named("kept"))
        .await?;
    let name = "agents-beyond-their-role";
    let verbs = "--verb=delete,deletecollection,patch";
    let what =
        "--resource=nodeagents.training.lockstep.dev,nodeagents.training.lockstep.dev/status";
    cluster
        .kubectl(&["create", "clusterrole", name, verbs, what])
        .await?;
    let to = "--serviceaccount=lockstep-agent:lockstep-agent";
    let role = format!("--clusterrole={name}");
    cluster
        .kubectl(&["create", "clusterrolebinding", name, &role, to])
        .await?;
    let delete = DeleteParams::default();
    for node in [None, Some("other"), Some("kept")] {
        let agents = agents_by(cluster, node).await?;
        eventually("the policy to answer", PATIENCE, async || {
            refused_by_policy(agents.delete("kept", &delete).await, "a deletion")
        })
        .await?;
        let listed = ListParams::default().fields("metadata.name=kept");
        let all = agents.delete_collection(&delete, &listed).await;
        refused_by_policy(all, "a deletion of all")?;
    }
    let admin: Api<NodeAgent> = Api::all(cluster.client().await?);
    let params = PatchParams::default();
    let mine = Patch::Merge(json!({"metadata": {"labels": {"mine": "now"}}}));
    for node in [None, Some("other")] {
        let agents = agents_by(cluster, node).await?;
        let changed = agents.patch("kept", &params, &mine).await;
        refused_by_policy(changed, "a change")?;
        let changed = agents.patch_status("kept", &params, &mine).await;
        refused_by_policy(changed, "a change by way of the status")?;
    }
    admin.delete("kept", &delete).await?;
    for kind in ["clusterrolebinding", "clusterrole"] {
        cluster.kubectl(&["delete", kind, name]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_manager_writes_scheduling_objects_even_against_a_role_for_everything()
-> Result<()> {
    scenario(
        cluster().await?,
        "mighty",
        &Shape {
            nodes: 1,
            ..Shape::default()
        },
        async |t| {
            t.grant_all("mighty").await?;
            t.create(gang("g", 1, 8, json!({}))).await?;
            t.running("g").await?;
            let group = t.pod_group("g").await?.name_any();
            let groups: Api<PodGroup> =
                Api::namespaced(t.cluster.client_as("user:mighty").await?, &t.name);
            ensure!(groups.get(&group).await.is_ok(), "the role does not work");
            let forged = Patch::Merge(json!({"status": {"preemption": null}}));
            let refused = groups
                .patch_status(&group, &PatchParams::default(), &forged)
                .await
                .err()
                .context("written")?;
            ensure!(
                refused
                    .to_string()
                    .contains("only Lockstep's manager writes"),
                "{refused}"
            );
            // An administrator of the whole cluster can override.
            let bound = ["create", "clusterrolebinding", "breaks-the-glass"];
            let to = ["--clusterrole=cluster-admin", "--user=breaks-the-glass"];
            t.cluster.kubectl(&[&bound[..], &to].concat()).await?;
            let client = t.cluster.client_as("user:breaks-the-glass").await?;
            let groups: Api<PodGroup> = Api::namespaced(client, &t.name);
            let asked = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            eventually("the right to be in force", PATIENCE, async || {
                groups.patch_status(&group, &asked, &forged).await?;
                Ok(())
            })
            .await
        },
    )
    .await
}

/// The role and binding of the page for users who repair the manager's objects, as a file.
fn repair_role(cluster: &Cluster) -> Result<String> {
    let blocks = blocks("docs/install.md", "yaml")?;
    let block = blocks.iter().find(|b| b.contains("lockstep-repair"));
    let path = cluster.folder().join("repair.yaml");
    std::fs::write(&path, block.context("a role on the page")?)?;
    Ok(path.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_repair_role_may_write_objects_of_the_manager() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("tokens of other identities") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster, "repair", &shape, async |t| {
        t.create(gang("g", 1, 8, json!({}))).await?;
        t.running("g").await?;
        let group = t.pod_group("g").await?.name_any();
        let file = repair_role(t.cluster)?;
        let strict = ["--validate=strict", "-f", &file];
        t.cluster
            .kubectl(&[&["apply"][..], &strict].concat())
            .await?;
        let client = t.cluster.client_as("user:somebody:lockstep-repair").await?;
        let groups: Api<PodGroup> = Api::namespaced(client.clone(), &t.name);
        let workloads: Api<TrainingWorkload> = Api::namespaced(client, &t.name);
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let repaired = Patch::Merge(json!({"status": {"message": "repaired"}}));
        let withdrawn = Patch::Merge(json!({"status": {"preemption": null}}));
        eventually("the right to be in force", PATIENCE, async || {
            groups.patch_status(&group, &params, &withdrawn).await?;
            workloads.patch_status("g", &params, &repaired).await?;
            Ok(())
        })
        .await?;
        t.cluster.kubectl(&["delete", "-f", &file]).await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_manager_creates_members_and_users_may_label_them() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    Box::pin(scenario(cluster().await?, "forger", &shape, async |t| {
        t.grant_all("forger").await?;
        t.create(gang("g", 1, 8, json!({}))).await?;
        t.running("g").await?;
        let member = t.all_pods().list(&ListParams::default()).await?.items;
        let member = member.into_iter().next().context("a member")?;
        let pods: Api<Pod> = Api::namespaced(t.cluster.client_as("user:forger").await?, &t.name);
        let name = member.name_any();
        let label = Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
        pods.patch(&name, &PatchParams::default(), &label).await?;
        let forged: Pod = serde_json::from_value(json!({
            "metadata": {"name": "forged", "labels": member.labels(),
                "ownerReferences": member.owner_references()},
            "spec": {"containers": [{"name": "c", "image": "registry.example/forged:1"}]}}))?;
        let refused = pods.create(&PostParams::default(), &forged).await.err();
        let refused = refused.context("a member was forged")?.to_string();
        ensure!(
            refused.contains("only Lockstep's manager makes pods"),
            "{refused}"
        );
        let mut own = forged;
        let owners = own.metadata.owner_references.take();
        let mut copied = Vec::new();
        for label in [labels::WORKLOAD_UID, labels::PUBLISHED] {
            let refused = pods.create(&PostParams::default(), &own).await.err();
            let refused = refused.context("a copy has the label of a member")?;
            ensure!(refused.to_string().contains(label), "{refused}");
            let value = own.labels_mut().remove(label);
            copied.push(json!({"metadata": {"labels": {label: value}}}));
        }
        own.metadata.labels = None;
        pods.create(&PostParams::default(), &own).await?;
        for label in copied {
            let labelled = Patch::Merge(label);
            let labelled = pods
                .patch("forged", &PatchParams::default(), &labelled)
                .await;
            ensure!(labelled.is_err(), "an own pod got a label of a member");
        }
        let adopted = Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
        let params = PatchParams::default();
        ensure!(
            pods.patch("forged", &params, &adopted).await.is_err(),
            "an own pod became a member"
        );
        // An owner of another API group is not guarded, and cannot be changed to our group either.
        let mut odd = own;
        odd.metadata.name = Some("odd".into());
        odd.metadata.owner_references.clone_from(&owners);
        for owner in odd.metadata.owner_references.iter_mut().flatten() {
            owner.api_version = "example.com/v1".into();
        }
        pods.create(&PostParams::default(), &odd).await?;
        let refused = pods.patch("odd", &params, &adopted).await.err();
        let refused = refused.context("a pod of another owner became a member")?;
        ensure!(
            refused
                .to_string()
                .contains("only Lockstep's manager makes pods"),
            "{refused}"
        );
        Ok(())
    }))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn users_read_the_status_of_workloads_but_do_not_write_it() -> Result<()> {
    let cluster = cluster().await?;
    // A controller aggregates the roles of users.
    if !cluster.has_nodes("aggregated roles") {
        return Ok(());
    }
    for (verb, what, allowed) in [
        ("create", "trainingworkloads", true),
        ("patch", "trainingworkloads/status", false),
    ] {
        cluster
            .kubectl(&["create", "namespace", &format!("roles-{verb}")])
            .await?;
        let namespace = format!("roles-{verb}");
        cluster
            .kubectl(&[
                "create",
                "rolebinding",
                "u",
                "--clusterrole=edit",
                "--user=u",
                "-n",
                &namespace,
            ])
            .await?;
        let client = cluster.client_as("user:u").await?;
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {
            "resourceAttributes": {"namespace": namespace, "verb": verb, "group": "training.lockstep.dev",
                "resource": what.split('/').next(), "subresource": what.split('/').nth(1).unwrap_or_default()}}});
        let review: k8s_openapi::api::authorization::v1::SelfSubjectAccessReview =
            serde_json::from_value(review)?;
        let answer = Api::all(client)
            .create(&PostParams::default(), &review)
            .await?;
        ensure!(
            answer.status.context("an answer")?.allowed == allowed,
            "{verb} {what}"
        );
    }
    Ok(())
}
