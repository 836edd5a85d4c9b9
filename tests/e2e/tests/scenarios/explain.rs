//! Explanations of preemptions, before and after they happen.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lockstep_api::condition::{find, types};
use lockstep_api::scheduling::Preemption;
use lockstep_cluster::manifests::{gang, pin_to_pool};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, node};
use lockstep_cluster::{eventually, reaper, scenario};
use lockstep_e2e::cluster;
use serde_json::{Value, json};

fn of_class(name: &str, members: i32, class: &str) -> Value {
    gang(name, members, 8, json!({"priorityClassName": class}))
}

/// Two gangs fill the nodes: a gang of two nodes, then a small gang, which has less work to lose per
/// node.
async fn small_and_large(t: &Scenario<'_>) -> Result<()> {
    let mut small = of_class("small", 1, "low");
    small["spec"]["groups"][0]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(20);
    t.create(of_class("large", 2, "low")).await?;
    t.running("large").await?;
    t.create(small).await?;
    t.running("small").await?;
    Ok(())
}

/// Notes of all events with this reason for a workload.
async fn notes(t: &Scenario<'_>, workload: &str, reason: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(t.client.clone(), &t.name);
    let about = |e: &Event| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(workload);
    let events = events.list(&ListParams::default()).await?.items;
    let told = events
        .into_iter()
        .filter(|e| about(e) && e.reason.as_deref() == Some(reason));
    Ok(told.filter_map(|e| e.note).collect::<Vec<_>>().join("\n"))
}

fn says(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preemption_is_explained_to_the_preemptor_and_to_the_victim() -> Result<()> {
    scenario(
        cluster().await?,
        "explain",
        &Shape {
            nodes: 3,
            ..Shape::default()
        },
        async |t| {
            small_and_large(t).await?;
            // The victim ignores SIGTERM, so that there is time for the check.
            let stubborn = t.running("small").await?[0].name_any();
            t.nodes
                .post(
                    "/hang",
                    json!({"pod": format!("{}/{stubborn}", t.name), "container": "trainer"}),
                )
                .await?;
            t.create(of_class("vip", 1, "high")).await?;
            let intent: Preemption = eventually("an intent to preempt", PATIENCE, async || {
                t.pod_group("vip")
                    .await?
                    .status
                    .and_then(|s| s.preemption)
                    .context("no intent")
            })
            .await?;
            let small = t.pod_group("small").await?.name_any();
            ensure!(
                intent
                    .victims
                    .iter()
                    .map(|v| v.name.as_str())
                    .eq([small.as_str()]),
                "{intent:?}"
            );
            ensure!(
                intent.proven && intent.at_least == intent.cost,
                "{intent:?}"
            );
            let next = intent.next_best.clone().context("a next best set")?;
            ensure!(next.cost > intent.cost, "{next:?}");

            let why = [
                "preempts",
                "1 victim",
                "no cheaper set frees enough capacity",
                "the next best set",
                &next.cost.to_string(),
            ];
            says(&t.lockstep(&["explain", "vip"]).await?, &why)?;
            let told = eventually("the victim to be told", PATIENCE, async || {
                let status = t.pod_group("small").await?.status.context("status")?;
                let condition =
                    find(&status.conditions, types::DISRUPTION_TARGET).context("not told")?;
                Ok(condition.message.clone())
            })
            .await?;
            let vip = t.pod_group("vip").await?.name_any();
            let why = [
                &format!("{}/{vip}", t.name),
                "priority",
                &intent.id,
                "no cheaper set frees enough capacity",
            ];
            says(&told, &why)?;

            t.running("vip").await?;
            eventually("the story to be complete", PATIENCE, async || {
                says(
                    &notes(t, "vip", "Preempting").await?,
                    &["no cheaper set frees enough capacity", "1 victim"],
                )?;
                says(&notes(t, "small", "PreemptionByScheduler").await?, &why)?;
                says(
                    &t.lockstep(&["explain", "vip"]).await?,
                    &["placed", "Preempting", "1 victim"],
                )?;
                says(
                    &t.lockstep(&["explain", "small"]).await?,
                    &[
                        "preempted once",
                        "requeued at its original position",
                        &intent.id,
                    ],
                )
            })
            .await
        },
    )
    .await
}

/// Answer of `kubectl lockstep whatif` for a manifest.
async fn what_if(t: &Scenario<'_>, manifest: &Value) -> Result<Value> {
    let mut manifest = manifest.clone();
    pin_to_pool(&mut manifest, &t.name);
    let file = reaper::folder()?.join(format!("{}.json", t.name));
    std::fs::write(&file, serde_json::to_vec(&manifest)?)?;
    let answer = t
        .lockstep(&["whatif", "-o", "json", "-f", &file.display().to_string()])
        .await?;
    let answer: Value = serde_json::from_str(&answer).context(answer)?;
    Ok(answer["gangs"][0].clone())
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| Some(v[key].as_str()?.to_owned()))
        .collect()
}

/// Applies a manifest after `whatif`, and checks that its members run on the predicted nodes.
async fn as_foretold(t: &Scenario<'_>, name: &str, manifest: Value) -> Result<Value> {
    let answer = what_if(t, &manifest).await?;
    t.create(manifest).await?;
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for pod in t.running(name).await? {
        *nodes.entry(node(&pod)).or_default() += 1;
    }
    let foretold = names(&answer["nodes"], "node");
    ensure!(
        nodes.keys().eq(foretold.iter()),
        "{name} runs on {nodes:?}, foretold was {answer}"
    );
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatif_says_what_the_manager_then_does() -> Result<()> {
    scenario(cluster().await?, "foretold", &Shape::default(), async |t| {
        t.create(of_class("small", 1, "low")).await?;
        t.create(of_class("large", 2, "low")).await?;
        t.running("small").await?;
        let large = t.running("large").await?;
        let answer = as_foretold(t, "last", of_class("last", 1, "low")).await?;
        ensure!(answer["verdict"] == "Fits", "{answer}");
        let answer = as_foretold(t, "vip", of_class("vip", 1, "high")).await?;
        ensure!(answer["verdict"] == "Preempts", "{answer}");
        let victims = names(&answer["victims"], "name");
        let mut evicted = Vec::new();
        for name in ["small", "last"] {
            let preempted = t
                .workloads()
                .get(name)
                .await?
                .status
                .context("status")?
                .preemptions
                > 0;
            evicted.extend(if preempted {
                Some(t.pod_group(name).await?.name_any())
            } else {
                None
            });
        }
        ensure!(
            evicted == victims,
            "{evicted:?} left, foretold was {victims:?}"
        );
        ensure!(
            lockstep_cluster::scenario::uids(&large)
                == lockstep_cluster::scenario::uids(&t.pods("large").await?)
        );
        Ok(())
    })
    .await
}
