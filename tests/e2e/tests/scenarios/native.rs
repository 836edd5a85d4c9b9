//! Native groups: discovery, also after a restart of the API server, and gangs in backend Both.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use lockstep_api::condition::{find, types};
use lockstep_api::workload::Phase;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_cluster::{Cluster, Options, eventually, http, scenario};
use lockstep_e2e::{
    IN_TURN, NATIVE_GATE, cluster, native, native_config, native_groups, native_version,
    no_native_groups, patient, with_backend,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until one native pod group is left, which these pods have joined and of which kube-scheduler
/// needs one member.
async fn joined(t: &Scenario<'_>, pods: &[Pod]) -> Result<PodGroup> {
    eventually(
        "one native pod group with minCount 1",
        PATIENCE,
        async || {
            let groups = native_groups(t).await?;
            let [group] = groups.as_slice() else {
                bail!("{} groups", groups.len());
            };
            for pod in pods {
                let joined = pod.spec.as_ref().and_then(|s| s.scheduling_group.as_ref());
                let joined = joined.and_then(|g| g.pod_group_name.clone());
                ensure!(joined.as_deref() == Some(&*group.name_any()), "{joined:?}");
            }
            let gang = group.spec.scheduling_policy.gang.as_ref();
            ensure!(gang.is_some_and(|g| g.min_count == 1), "{gang:?}");
            let status = group.status.iter();
            let mut conditions = status.flat_map(|s| s.conditions.iter().flatten());
            let scheduled =
                conditions.any(|c| c.type_ == "PodGroupInitiallyScheduled" && c.status == "True");
            ensure!(scheduled, "kube-scheduler has not placed the group");
            Ok(group.clone())
        },
    )
    .await
}

/// Waits until the metrics show these versions and this state of the field of pods.
async fn shows(metrics: &str, versions: &[&str], field: &str) -> Result<()> {
    let what = format!("the metrics to show {versions:?} and {field}");
    eventually(&what, PATIENCE, async || {
        let text = http::get(metrics, "/metrics").await?;
        let lines: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("lockstep_native_scheduling"))
            .collect();
        let mut expected: Vec<String> = versions
            .iter()
            .map(|v| format!("lockstep_native_scheduling{{version=\"{v}\"}} 1"))
            .collect();
        expected.push(format!(
            "lockstep_native_scheduling_pod_field{{state=\"{field}\"}} 1"
        ));
        let same = expected.iter().all(|e| lines.contains(&e.as_str()));
        ensure!(same && lines.len() == expected.len(), "{lines:?}");
        Ok(())
    })
    .await
}

/// The finding of `kubectl lockstep doctor` about native groups.
async fn doctor(cluster: &Cluster) -> Result<String> {
    let checks = cluster.lockstep(&["doctor", "-o", "json"]).await;
    // Without hollow nodes some checks fail, and so does the command.
    let text = checks.unwrap_or_else(|failed| failed.to_string());
    let start = text.find('{').context("JSON")?;
    let end = text.rfind('}').context("JSON")?;
    let diagnosis: Value = serde_json::from_str(&text[start..=end])?;
    let checks = diagnosis["checks"].as_array().context("checks")?;
    let native = checks.iter().find(|c| c["check"] == "native");
    let message = native.and_then(|c| c["message"].as_str());
    Ok(message.context("a message")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_api_server_with_other_gates_is_noticed() -> Result<()> {
    IN_TURN
        .run("native groups", native_config(patient()), async |cluster| {
            let manager = cluster.start_manager("a").await?;
            shows(&manager.metrics, &[], "unknown").await?;
            ensure!(doctor(cluster).await? == "scheduling.k8s.io serves no pod groups");
            cluster
                .restart_api_server(NATIVE_GATE, &[native_version("v1beta1")])
                .await?;
            shows(&manager.metrics, &["v1beta1"], "kept").await?;
            let message = doctor(cluster).await?;
            ensure!(
                message.contains("pods keep spec.schedulingGroup"),
                "{message}"
            );
            // Without the gate, the version is served without pod groups.
            cluster
                .restart_api_server("", &[native_version("v1beta1")])
                .await?;
            shows(&manager.metrics, &[], "unknown").await?;
            manager.process.terminate(PATIENCE).await.map(drop)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the programs of Kubernetes 1.36, a quarter of an hour: make test-full"]
async fn gangs_run_where_the_api_server_of_1_36_serves_alpha_groups() -> Result<()> {
    let options = Options {
        kubernetes: "1.36.3".into(),
        gates: NATIVE_GATE.into(),
        api_server: vec![native_version("v1alpha2")],
        config: native_config(json!({"scheduling": {"backend": "Both"}})),
        ..Options::named("native-alpha")
    };
    let cluster = Cluster::start(&options).await?;
    if !cluster.has_nodes("alpha groups") {
        return Ok(());
    }
    let manager = cluster.start_manager("a").await?;
    shows(&manager.metrics, &["v1alpha2"], "kept").await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(&cluster, "alpha", &shape, async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        let pods = t.running("g").await?;
        let ungrouped = |pod: &Pod| pod.spec.as_ref().is_some_and(|s| s.scheduling_group.is_none());
        ensure!(pods.iter().all(ungrouped));
        let message = doctor(t.cluster).await?;
        let why = "scheduling.backend is Both, but gangs get no native groups: scheduling.k8s.io serves pod groups \
                   in v1alpha2, and Lockstep creates them in v1beta1";
        ensure!(message == why, "{message}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_scheduler_binds_a_gang_of_backend_both_by_its_native_group() -> Result<()> {
    let cluster = native().await?;
    scenario(cluster, "both", &Shape::default(), async |t| {
        let recreate = json!({"priorityClassName": "low", "failurePolicy": {"rules": [
            {"name": "three", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RecreateGang"}]}});
        t.create(gang("g", 2, 8, with_backend("Both", recreate)))
            .await?;
        let pods = t.running("g").await?;
        let group = joined(t, &pods).await?;
        let spec = &group.spec;
        ensure!(
            spec.priority == Some(100) && spec.priority_class_name.as_deref() == Some("low"),
            "{spec:?}"
        );
        let all = spec
            .disruption_mode
            .as_ref()
            .is_some_and(|m| m.all.is_some());
        ensure!(all, "{spec:?}");

        // A tenant raises minCount: it is lowered again.
        let raised = r#"{"spec":{"schedulingPolicy":{"gang":{"minCount":7}}}}"#;
        let name = group.name_any();
        let kind = "podgroups.scheduling.k8s.io";
        t.kubectl(&["patch", kind, &name, "--type=merge", "-p", raised])
            .await?;
        joined(t, &pods).await?;

        // A tenant deletes the group: its finalizer keeps it while pods run.
        t.kubectl(&["delete", kind, &name, "--wait=false"]).await?;

        // New pods get another group, and the old one goes with its pods.
        t.exit(pods.first().context("a pod")?, 3).await?;
        t.restarted("g", 1).await?;
        let pods = t.running("g").await?;
        let second = joined(t, &pods).await?;
        ensure!(second.name_any() != name, "{name} again");

        t.kubectl(&["delete", "tw", "g"]).await?;
        t.no_pods("g").await?;
        no_native_groups(t).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_gang_with_finished_and_lost_members_completes() -> Result<()> {
    completes("Both").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_of_backend_kubernetes_with_finished_and_lost_members_completes() -> Result<()> {
    completes("Kubernetes").await
}

/// A gang of which one member has finished and another is lost succeeds.
async fn completes(backend: &str) -> Result<()> {
    let cluster = native().await?;
    let name = format!("lost-{}", backend.to_lowercase());
    scenario(cluster, &name, &Shape::default(), async |t| {
        // One member of the group is lost alone, while another has finished and a third runs.
        let alone = json!({"scheduling": {"gang": {"minCount": 1}, "disruptionMode": "Single"}});
        t.create(gang("g", 3, 8, with_backend(backend, alone)))
            .await?;
        let pods = t.running("g").await?;
        joined(t, &pods).await?;
        t.exit(&pods[0], 0).await?;
        t.workload("g", "to have a finished member", |w| {
            let status = w.status.as_ref().context("status")?;
            let succeeded: i32 = status.groups.iter().map(|g| g.succeeded).sum();
            ensure!(succeeded == 1, "{succeeded} succeeded");
            Ok(())
        })
        .await?;
        t.kubectl(&["delete", "pod", &pods[1].name_any()]).await?;
        let lost = pods[1].uid();
        let pods = eventually("the lost member to run again", PATIENCE, async || {
            let pods = t.running("g").await?;
            ensure!(pods.len() == 3 && pods[1].uid() != lost, "not yet");
            Ok(pods)
        })
        .await?;
        for pod in &pods[1..] {
            t.exit(pod, 0).await?;
        }
        t.workload("g", "to succeed", |w| {
            let phase = w.status.as_ref().and_then(|s| s.phase);
            ensure!(phase == Some(Phase::Succeeded), "{phase:?}");
            Ok(())
        })
        .await?;
        no_native_groups(t).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_scheduler_places_gangs_of_backend_kubernetes_whole() -> Result<()> {
    let cluster = native().await?;
    let low = with_backend("Kubernetes", json!({"priorityClassName": "low"}));
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "kubernetes", &shape, async |t| {
        // One member more than nodes: kube-scheduler binds none.
        t.create(gang("large", 3, 8, low.clone())).await?;
        t.workload(
            "large",
            "to show why kube-scheduler does not place it",
            |w| {
                let status = w.status.as_ref().context("status")?;
                let admitted = find(&status.conditions, types::ADMITTED).context("Admitted")?;
                let message = &admitted.message;
                ensure!(admitted.reason == "Unschedulable", "{}", admitted.reason);
                ensure!(
                    message.contains("minCount (3) cannot be satisfied"),
                    "{message}"
                );
                Ok(())
            },
        )
        .await?;
        let pods = t.pods("large").await?;
        ensure!(pods.len() == 3, "{} pods", pods.len());
        let bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
        ensure!(pods.iter().filter(bound).count() == 0);
        t.kubectl(&["delete", "tw", "large"]).await?;
        t.no_pods("large").await?;

        t.create(gang("g", 2, 8, low)).await?;
        let pods = t.running("g").await?;
        let group = joined(t, &pods).await?;
        ensure!(group.spec.priority == Some(100), "{:?}", group.spec);
        let pinned = |pod: &Pod| pod.spec.as_ref().is_some_and(|s| s.affinity.is_some());
        ensure!(!pods.iter().any(pinned), "a pod is pinned");

        // A dead member restarts in place.
        t.exit(&pods[0], 3).await?;
        t.restarted("g", 1).await?;
        let again = t.running("g").await?;
        ensure!(uids(&again) == uids(&pods), "new pods");

        // kube-scheduler takes the whole gang for a gang of higher priority.
        let high = with_backend("Kubernetes", json!({"priorityClassName": "high"}));
        t.create(gang("vip", 2, 8, high)).await?;
        t.running("vip").await?;
        for pod in &pods {
            let reasons = t.event_reasons(&pod.name_any()).await?;
            ensure!(reasons.iter().any(|r| r == "Preempted"), "{reasons:?}");
        }
        let workload = t
            .workload("g", "to wait for capacity", |w| {
                let phase = w.status.as_ref().and_then(|s| s.phase);
                ensure!(phase == Some(Phase::Pending), "{phase:?}");
                Ok(())
            })
            .await?;
        let status = workload.status.context("status")?;
        ensure!(
            status.preemptions == 1,
            "{} preemptions",
            status.preemptions
        );
        ensure!(status.restarts.counted == 1, "the preemption is charged");
        t.kubectl(&["delete", "tw", "vip"]).await?;
        t.running("g").await?;

        for suspend in [true, false] {
            t.patch_spec("g", json!({"suspend": suspend})).await?;
            if suspend {
                t.no_pods("g").await?;
            }
        }
        t.running("g").await?;
        t.kubectl(&["delete", "tw", "g"]).await?;
        t.no_pods("g").await?;
        no_native_groups(t).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_kubernetes_is_refused_where_pods_have_no_groups() -> Result<()> {
    let cluster = cluster().await?;
    scenario(cluster, "no-groups", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, with_backend("Kubernetes", json!({}))))
            .await?;
        let (reason, message) = t.condition("g", types::STALLED).await?;
        ensure!(reason == "NativeGroupsUnavailable", "{reason}: {message}");
        ensure!(message.contains("GenericWorkload"), "{message}");
        ensure!(t.pods("g").await?.is_empty());
        Ok(())
    })
    .await
}

/// Members of a gang on two nodes that kube-scheduler preempts for one pod of higher priority.
async fn preempted(backend: &str) -> Result<Option<usize>> {
    let name = format!("victims-{}", backend.to_lowercase());
    let cluster = native().await?;
    if !cluster.has_nodes("native groups") {
        return Ok(None);
    }
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    let mut preempted = 0;
    scenario(cluster, &name, &shape, async |t| {
        let low = with_backend(backend, json!({"priorityClassName": "low"}));
        t.create(gang("g", 2, 8, low)).await?;
        let pods = t.running("g").await?;
        t.create(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vip"},
            "spec": {"priorityClassName": "high", "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "trainer", "image": "registry.example/service:1",
                    "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}),
        )
        .await?;
        eventually("the pod to be bound", PATIENCE, async || {
            let vip = t.all_pods().get("vip").await?;
            let node = vip.spec.and_then(|s| s.node_name);
            node.context("not bound").map(drop)
        })
        .await?;
        // The gang releases its other node too, and waits for both.
        t.workload("g", "to wait for capacity", |w| {
            let phase = w.status.as_ref().and_then(|s| s.phase);
            ensure!(phase == Some(Phase::Pending), "{phase:?}");
            Ok(())
        })
        .await?;
        for pod in &pods {
            let reasons = t.event_reasons(&pod.name_any()).await?;
            preempted += usize::from(reasons.iter().any(|r| r == "Preempted"));
        }
        t.kubectl(&["delete", "pod", "vip"]).await?;
        t.running("g").await.map(drop)
    })
    .await?;
    Ok(Some(preempted))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_takes_a_single_member_of_a_gang_of_backend_lockstep() -> Result<()> {
    let preempted = preempted("Lockstep").await?;
    ensure!(preempted.is_none_or(|n| n == 1), "{preempted:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_takes_a_gang_of_backend_both_whole() -> Result<()> {
    let preempted = preempted("Both").await?;
    ensure!(preempted.is_none_or(|n| n == 2), "{preempted:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lockstep_preempts_for_a_gang_of_backend_both() -> Result<()> {
    let cluster = native().await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "preempt-both", &shape, async |t| {
        let of = |class: &str| with_backend("Both", json!({"priorityClassName": class}));
        t.create(gang("g", 2, 8, of("low"))).await?;
        let victims = t.running("g").await?;
        t.create(gang("vip", 2, 8, of("high"))).await?;
        let pods = t.running("vip").await?;
        joined(t, &pods).await?;
        // kube-scheduler has preempted for no pod: Lockstep decided, and both gangs stayed whole.
        for pod in &victims {
            let reasons = t.event_reasons(&pod.name_any()).await?;
            let by_kube_scheduler = reasons.iter().filter(|r| *r == "Preempted").count();
            ensure!(by_kube_scheduler == 0, "{reasons:?}");
        }
        let status = t.workloads().get("g").await?.status.context("status")?;
        ensure!(
            status.preemptions == 1,
            "{} preemptions",
            status.preemptions
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_group_of_the_name_is_reported_and_never_used() -> Result<()> {
    let cluster = native().await?;
    scenario(cluster, "forged", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, with_backend("Both", json!({}))))
            .await?;
        let pods = t.running("g").await?;
        let group = joined(t, &pods).await?;
        // The tenant takes the finalizer off, and makes a group of the name that needs more members.
        let (name, kind) = (group.name_any(), "podgroups.scheduling.k8s.io");
        let bare = r#"{"metadata":{"finalizers":null}}"#;
        t.kubectl(&["delete", kind, &name, "--wait=false"]).await?;
        let groups: Api<PodGroup> = Api::namespaced(t.client.clone(), &t.name);
        let forged: PodGroup = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 9}}},
        }))?;
        let taken = async {
            t.kubectl(&["patch", kind, &name, "--type=merge", "-p", bare])
                .await?;
            anyhow::Ok(groups.create(&PostParams::default(), &forged).await?)
        };
        // The manager may be faster; then its own group is there again.
        if taken.await.is_ok() {
            let (reason, message) = t.condition("g", types::STALLED).await?;
            ensure!(
                reason == "NameConflict" && message.contains(&name),
                "{reason}: {message}"
            );
            t.kubectl(&["delete", kind, &name, "--wait=false"]).await?;
            t.kubectl(&["patch", kind, &name, "--type=merge", "-p", bare])
                .await?;
        }
        let pods = t.running("g").await?;
        eventually("the workload's own group", PATIENCE, async || {
            let group = groups.get(&name).await?;
            let owner = group.metadata.owner_references.unwrap_or_default();
            ensure!(
                owner.iter().any(|o| o.kind == "TrainingWorkload"),
                "{owner:?}"
            );
            Ok(())
        })
        .await?;
        ensure!(pods.len() == 2, "members were disturbed");
        Ok(())
    })
    .await
}
