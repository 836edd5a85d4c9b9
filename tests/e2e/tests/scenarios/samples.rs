//! Every sample reaches what its first lines promise.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::labels;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{merge, parse};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, in_one_domain, node, restarts, uids};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

use crate::preemption::{evicted_and_spared, two_low};

/// One test each. The quick start covers `06-without-accelerators`.
const SAMPLES: [&str; 9] = [
    "01-minimal",
    "02-topology",
    "03-failure-policy",
    "04-elastic",
    "05-depends-on",
    "06-without-accelerators",
    "07-preemption-by-cost",
    "08-checkpoint-on-request",
    "09-preflight",
];

fn folder() -> PathBuf {
    repository().join("samples")
}

/// Creates the objects of a sample and returns the name of its workload, which is the last object.
async fn apply(t: &Scenario<'_>, sample: &str) -> Result<String> {
    let text = std::fs::read_to_string(folder().join(format!("{sample}.yaml")))?;
    let mut name = String::new();
    for object in text.split("\n---\n") {
        name = t.create(parse(object)?).await?.name_any();
    }
    Ok(name)
}

/// Waits until a group has this number of running pods, and returns them.
async fn group_runs(t: &Scenario<'_>, name: &str, group: &str, members: usize) -> Result<Vec<Pod>> {
    eventually(
        &format!("{members} pods of {group} to run"),
        PATIENCE,
        async || {
            let mut pods = t.pods(name).await?;
            pods.retain(|p| p.labels().get(labels::GROUP).is_some_and(|g| g == group));
            let running = pods
                .iter()
                .filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"))
                .count();
            ensure!(
                (running, pods.len()) == (members, members),
                "{running} of {} run",
                pods.len()
            );
            Ok(pods)
        },
    )
    .await
}

#[test]
fn every_sample_has_a_scenario() -> Result<()> {
    let files: BTreeSet<String> = std::fs::read_dir(folder())?
        .map(|e| {
            Ok(e?
                .path()
                .file_stem()
                .context("a file name")?
                .to_string_lossy()
                .into_owned())
        })
        .collect::<Result<_>>()?;
    ensure!(files.iter().eq(SAMPLES), "{files:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_minimal_is_placed_together_and_restarted_together() -> Result<()> {
    scenario(cluster().await?, "minimal", &Shape::default(), async |t| {
        let name = apply(t, SAMPLES[0]).await?;
        let before = t.running(&name).await?;
        t.exit(before.first().context("a pod")?, 1).await?;
        t.restarted(&name, 1).await?;
        let after = t.running(&name).await?;
        ensure!(
            (before.len(), after.len()) == (4, 4),
            "{} and {} pods",
            before.len(),
            after.len()
        );
        // Without a supervisor there is no fence, so all members get new pods on their nodes.
        ensure!(
            after
                .iter()
                .all(|p| before.iter().all(|b| b.uid() != p.uid())),
            "an old pod is still there"
        );
        ensure!(
            before.iter().map(node).eq(after.iter().map(node)),
            "members did not keep their nodes"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_topology_keeps_each_slice_in_a_rack_and_places_both_or_none() -> Result<()> {
    // Seven nodes: the second rack has capacity for three members of four.
    scenario(
        cluster().await?,
        "slices-none",
        &Shape {
            nodes: 7,
            ..Shape::default()
        },
        async |t| {
            let name = apply(t, SAMPLES[1]).await?;
            t.condition_is(&name, types::ADMITTED, false, reasons::EXCEEDS_CLUSTER)
                .await?;
            ensure!(
                t.pods(&name).await?.is_empty(),
                "one slice was placed alone"
            );
            Ok(())
        },
    )
    .await?;
    scenario(
        cluster().await?,
        "slices-both",
        &Shape {
            nodes: 8,
            ..Shape::default()
        },
        async |t| {
            let name = apply(t, SAMPLES[1]).await?;
            let domains = |level| t.nodes.label_values(level, &t.client);
            let racks = domains("topology.kubernetes.io/rack").await?;
            let zones = domains("topology.kubernetes.io/zone").await?;
            let pods = t.running(&name).await?;
            in_one_domain(&pods, &zones)?;
            for slice in pods.chunks(4) {
                in_one_domain(slice, &racks)?;
            }
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_failure_policy_does_with_each_failure_what_it_says() -> Result<()> {
    scenario(
        cluster().await?,
        "careful",
        &Shape {
            nodes: 5,
            ..Shape::default()
        },
        async |t| {
            let name = apply(t, SAMPLES[2]).await?;
            let first = t.running(&name).await?;
            t.exit(&first[0], 1).await?;
            t.restarted(&name, 1).await?;
            let second = t.running(&name).await?;
            ensure!(
                uids(&first) == uids(&second),
                "everything else restarts in place"
            );

            t.exit(&second[1], 42).await?;
            t.restarted(&name, 2).await?;
            let third = t.running(&name).await?;
            ensure!(
                node(&third[1]) != node(&second[1]),
                "the member of the broken accelerator kept its node"
            );
            let others = |pods: &[Pod]| [&uids(pods)[..1], &uids(pods)[2..]].concat();
            ensure!(
                others(&third) == others(&second),
                "more than one member was moved"
            );

            t.all_pods()
                .evict(&third[2].name_any(), &EvictParams::default())
                .await?;
            let status = t.restarted(&name, 3).await?;
            ensure!(
                status.restarts.counted == 2,
                "the drain was counted: {:?}",
                status.restarts
            );

            t.exit(&t.running(&name).await?[3], 2).await?;
            let (reason, message) = t.condition(&name, types::FAILED).await?;
            ensure!(
                reason == reasons::FAILURE_POLICY && message.contains("bad-arguments"),
                "{reason}: {message}"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_elastic_runs_with_fewer_and_restarts_once_with_other_replicas() -> Result<()> {
    scenario(
        cluster().await?,
        "elastic-sample",
        &Shape {
            nodes: 3,
            ..Shape::default()
        },
        async |t| {
            let name = apply(t, SAMPLES[3]).await?;
            group_runs(t, &name, "workers", 3).await?;
            t.kubectl(&["scale", "tw", &name, "--replicas=2"]).await?;
            let status = t.restarted(&name, 1).await?;
            ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
            ensure!(t.running(&name).await?.len() == 2, "not two members");
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_depends_on_goes_from_data_to_training_to_evaluation() -> Result<()> {
    scenario(cluster().await?, "pipeline", &Shape::default(), async |t| {
        let name = apply(t, SAMPLES[4]).await?;
        group_runs(t, &name, "data", 2).await?;
        let workers = group_runs(t, &name, "workers", 4).await?;
        ensure!(
            workers.iter().all(|p| restarts(p) == 0),
            "the workers had to start twice"
        );
        try_join_all(workers.iter().map(|p| t.exit(p, 0))).await?;
        let evaluation = group_runs(t, &name, "evaluation", 1).await?;
        let pod = evaluation.first().context("a pod")?.name_any();
        t.nodes.exit(&t.name, &pod, "evaluate", 0).await?;
        let (reason, _) = t.condition(&name, types::COMPLETE).await?;
        ensure!(reason == reasons::SUCCESS_POLICY, "{reason}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_preemption_by_cost_evicts_one_gang_and_disables_kube_scheduler_preemption()
-> Result<()> {
    scenario(cluster().await?, "by-cost", &Shape::default(), async |t| {
        let before = two_low(t).await?;
        let name = apply(t, SAMPLES[6]).await?;
        let pods = t.running(&name).await?;
        for pod in &pods {
            let policy = pod
                .spec
                .as_ref()
                .and_then(|s| s.preemption_policy.as_deref());
            ensure!(policy == Some("Never"), "{}: {policy:?}", pod.name_any());
        }
        let (evicted, _) = evicted_and_spared(t, &before).await?;
        ensure!(
            t.pods(evicted).await?.is_empty(),
            "{evicted} was not evicted whole"
        );
        for (workload, needed) in [
            (name.as_str(), "Preempting"),
            (evicted, "PreemptionByScheduler"),
        ] {
            let events = t.event_reasons(workload).await?;
            ensure!(events.iter().any(|r| r == needed), "{workload}: {events:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_checkpoint_on_request_is_saved_and_continues() -> Result<()> {
    let shape = Shape {
        supervise: true,
        ..Shape::default()
    };
    scenario(cluster().await?, "saves", &shape, async |t| {
        let text = std::fs::read_to_string(folder().join(format!("{}.yaml", SAMPLES[7])))?;
        let mut sample = parse(&text)?;
        let container = &mut sample["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        let program = json!({"env": [
            {"name": "HOLLOW_STEP_MILLIS", "value": "1000"},
            {"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
        ]});
        merge(container, program);
        let name = t.create(sample).await?.name_any();
        let before = t.running(&name).await?;
        t.condition(&name, types::READY).await?;
        let said = t.lockstep(&["checkpoint", &name]).await?;
        ensure!(said.contains(" was saved after "), "{said}");
        let after = t.running(&name).await?;
        ensure!(uids(&before) == uids(&after), "pods were replaced");
        let shown = t.lockstep(&["status", &name]).await?;
        ensure!(shown.contains("Checkpoint requested (User)"), "{shown}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_preflight_moves_the_member_of_a_broken_node_uncounted() -> Result<()> {
    let shape = Shape {
        nodes: 5,
        ..Shape::default()
    };
    scenario(cluster().await?, "checked", &shape, async |t| {
        let text = std::fs::read_to_string(folder().join(format!("{}.yaml", SAMPLES[8])))?;
        let mut sample = parse(&text)?;
        let container = &mut sample["spec"]["groups"][0]["template"]["spec"]["initContainers"][0];
        merge(
            container,
            json!({"env": [{"name": "HOLLOW_RUN_MILLIS", "value": "15000"}]}),
        );
        let name = t.create(sample).await?.name_any();
        let broken = eventually("a node to be judged", PATIENCE, async || {
            let pods = t.pods(&name).await?;
            let pod = pods.first().context("no pod yet")?;
            t.nodes
                .exit(&t.name, &pod.name_any(), "preflight", 3)
                .await?;
            Ok(node(pod))
        })
        .await?;
        let pods = t.running(&name).await?;
        ensure!(
            pods.iter().all(|p| node(p) != broken),
            "a member is still on {broken}"
        );
        let status = t.restarted(&name, 1).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        Ok(())
    })
    .await
}
