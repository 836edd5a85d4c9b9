//! Nodes on demand by `ProvisioningRequest`s. The test plays the autoscaler.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::try_join;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_cluster::autoscaler::{Autoscaler, Report, Request};
use lockstep_cluster::manifests::{gang, group, merge};
use lockstep_cluster::nodes::{Nodes, Shape};
use lockstep_cluster::scenario::{PATIENCE, Scenario, node, scenario_on};
use lockstep_cluster::{Cluster, Options, eventually, scenario, time_of_day};
use lockstep_e2e::{demanding, on_demand, patient, started};
use serde_json::{Value, json};

const CLASS: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
/// Waits before the second and the third try.
pub(super) const BACKOFFS: [TimeDelta; 2] = [TimeDelta::minutes(10), TimeDelta::minutes(20)];
/// What is left of a wait that a test shortens.
const REST: TimeDelta = TimeDelta::seconds(2);
/// How long the nodes of a request may be missing after it is Provisioned.
const PROVISIONED: TimeDelta = TimeDelta::minutes(10);

/// Runs a test on the shared cluster, without nodes at first.
async fn without_nodes(
    name: &str,
    body: impl AsyncFnOnce(&Autoscaler<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let cluster = on_demand().await?;
    if !cluster.has_nodes(name) {
        return Ok(());
    }
    on_nodes_of(cluster, name, "v1", body).await
}

async fn on_nodes_of(
    cluster: &Cluster,
    name: &str,
    version: &str,
    body: impl AsyncFnOnce(&Autoscaler<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let none = Nodes::real(Vec::new());
    scenario_on(cluster, name, none, async |t| {
        let autoscaler = Autoscaler::of(t, version);
        let outcome = body(&autoscaler, t).await;
        // Nodes without a kubelet would count as an outage of the zone.
        autoscaler.remove_nodes().await?;
        outcome
    })
    .await
}

/// Words of the autoscaler, as messages quote them.
fn within_a_sentence(words: &str) -> &str {
    words.trim_end_matches('.')
}

/// Waits until the gang waits with these words in its message, which is returned.
pub(super) async fn says(t: &Scenario<'_>, name: &str, words: &str) -> Result<String> {
    let words = within_a_sentence(words);
    let what = format!("to say {words:?}");
    let waiting = t.workload(name, &what, |w| {
        let conditions = w.status.as_ref().map_or(&[][..], |s| &s.conditions);
        let admitted = find(conditions, types::ADMITTED).context("no condition yet")?;
        ensure!(admitted.message.contains(words), "{admitted:?}");
        Ok(())
    });
    let status = waiting.await?.status.context("a status")?;
    let admitted = find(&status.conditions, types::ADMITTED).context("the condition")?;
    Ok(admitted.message.clone())
}

/// Checks that no member of a waiting gang has a pod.
pub(super) async fn no_member(t: &Scenario<'_>, name: &str) -> Result<()> {
    let pods = t.pods(name).await?.len();
    ensure!(pods == 0, "{pods} pods of {name}");
    Ok(())
}

/// Waits until the current try has failed, with its message. Returns the time of its end.
pub(super) async fn failed(
    t: &Scenario<'_>,
    name: &str,
    number: i32,
    why: &str,
) -> Result<DateTime<Utc>> {
    let why = within_a_sentence(why);
    eventually("the try to fail", PATIENCE, async || {
        let status = t.pod_group(name).await?.status.context("a status")?;
        let demand = status.demand.context("no demand")?;
        let is_this = demand.number == number && demand.message.contains(why);
        let at = demand.failed_at.filter(|_| is_this);
        at.with_context(|| format!("{demand:?}"))
    })
    .await
}

/// Lets most of the wait before the next try pass. Returns the time when the try is due.
pub(super) async fn wait_shortened(
    t: &Scenario<'_>,
    name: &str,
    wait: TimeDelta,
) -> Result<DateTime<Utc>> {
    let failed_at = time_of_day() - wait + REST;
    let earlier = json!({"status": {"demand": {"failedAt": failed_at}}});
    let group = t.pod_group(name).await?.name_any();
    let params = PatchParams::default();
    let patch = Patch::Merge(earlier);
    t.pod_groups().patch_status(&group, &params, &patch).await?;
    Ok(failed_at + wait)
}

/// Waits for the request of the next try, which may not come before its time.
async fn next_try(
    autoscaler: &Autoscaler<'_>,
    t: &Scenario<'_>,
    name: &str,
    wait: TimeDelta,
) -> Result<Request> {
    let due = wait_shortened(t, name, wait).await?;
    let next = autoscaler.request(name).await?;
    let made = next.object.creation_timestamp().context("a time")?.0;
    let due = due.timestamp();
    ensure!(made.as_second() >= due, "{made} is before {due}");
    Ok(next)
}

/// Checks the marks of members that use the nodes of a request.
fn consume(pods: &[Pod], request: &Request) -> Result<()> {
    for pod in pods {
        let has = |key: &str, value: &str| pod.annotations().get(key).is_some_and(|v| v == value);
        ensure!(
            has(
                "autoscaling.x-k8s.io/consume-provisioning-request",
                &request.name()
            ) && has(
                "autoscaling.x-k8s.io/provisioning-class-name",
                request.class()
            ),
            "{:?}",
            pod.annotations()
        );
    }
    Ok(())
}

/// Checks the marks against consolidation.
fn protected(pods: &[Pod]) -> Result<()> {
    for pod in pods {
        let marks = pod.annotations();
        let mark = |key: &str| marks.get(key).map(String::as_str);
        ensure!(
            mark("cluster-autoscaler.kubernetes.io/safe-to-evict") == Some("false")
                && mark("karpenter.sh/do-not-disrupt") == Some("true"),
            "{marks:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_without_nodes_runs_on_those_that_its_request_has_brought() -> Result<()> {
    without_nodes("request-whole", async |autoscaler, t| {
        t.create(gang("g", 3, 8, json!({}))).await?;
        let request = autoscaler.request("g").await?;
        ensure!(
            request.class() == CLASS && request.nodes()? == 3 && request.pod_sets.len() == 1,
            "{request:?}"
        );
        let pool = json!({lockstep_cluster::manifests::POOL: t.name});
        let template = request.pod_sets[0].0.spec.as_ref().context("a spec")?;
        ensure!(json!(template.node_selector) == pool && template.affinity.is_none());
        says(t, "g", "nodes are requested since").await?;
        autoscaler.report(&request, Report::Accepted).await?;
        says(t, "g", Report::Accepted.message()).await?;
        no_member(t, "g").await?;
        autoscaler.report(&request, Report::Provisioned).await?;
        says(t, "g", Report::Provisioned.message()).await?;
        no_member(t, "g").await?;
        autoscaler.add_nodes(3, json!({}), &[]).await?;
        let pods = t.running("g").await?;
        consume(&pods, &request)?;
        protected(&pods)?;
        autoscaler.nothing_left("g").await?;
        let events = t.event_reasons("g").await?;
        let of_nodes: Vec<_> = events.iter().filter(|e| e.starts_with("Nodes")).collect();
        ensure!(
            of_nodes == ["NodesRequested", "NodesProvided"],
            "{events:?}"
        );
        let status = t.pod_group("g").await?.status.context("a status")?;
        ensure!(status.demand.is_none(), "{:?}", status.demand);
        Ok(())
    })
    .await
}

/// As cloud providers mark nodes whose start is not over.
fn starting() -> Taint {
    Taint {
        key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
        effect: "NoSchedule".into(),
        value: Some("true".into()),
        time_added: None,
    }
}

/// Changes a node as an administrator.
async fn patch_node(t: &Scenario<'_>, name: &str, status: bool, patch: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(t.client.clone());
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    if status {
        nodes.patch_status(name, &params, &patch).await?;
    } else {
        nodes.patch(name, &params, &patch).await?;
    }
    Ok(())
}

/// Waits until the scheduler has considered this state of the cluster: another gang, which it sees
/// for the first time, has the reason why it waits.
async fn considered(t: &Scenario<'_>, probe: &str) -> Result<()> {
    t.create(gang(probe, 1, 8, json!({}))).await?;
    t.workload(probe, "to have a verdict", |w| {
        let conditions = w.status.as_ref().map_or(&[][..], |s| &s.conditions);
        let admitted = find(conditions, types::ADMITTED).context("no condition yet")?;
        ensure!(admitted.message != "waiting in the scheduling queue");
        Ok(())
    })
    .await
    .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_one_after_the_other_are_kept_for_their_gang() -> Result<()> {
    without_nodes("request-slow", async |autoscaler, t| {
        t.create(gang("g", 3, 8, json!({}))).await?;
        let request = autoscaler.request("g").await?;
        autoscaler.report(&request, Report::Accepted).await?;
        autoscaler.report(&request, Report::Provisioned).await?;
        autoscaler.add_nodes(1, json!({}), &[]).await?;
        // Fits into the first node at once, but comes later.
        t.create(gang("late", 1, 8, json!({}))).await?;
        let tainted = autoscaler.add_nodes(1, json!({}), &[starting()]).await?;
        let last = autoscaler.add_nodes(1, json!({}), &[starting()]).await?;
        let none =
            json!({"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}});
        patch_node(t, &last[0], true, json!({"status": none})).await?;
        considered(t, "probe-taints").await?;
        no_member(t, "g").await?;
        for name in [&tainted[0], &last[0]] {
            patch_node(t, name, false, json!({"spec": {"taints": null}})).await?;
        }
        considered(t, "probe-device-plugin").await?;
        no_member(t, "g").await?;
        no_member(t, "late").await?;
        let all =
            json!({"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}});
        patch_node(t, &last[0], true, json!({"status": all})).await?;
        let pods = t.running("g").await?;
        let used: BTreeSet<String> = pods.iter().map(node).collect();
        ensure!(used.len() == 3, "{used:?}");
        no_member(t, "late").await?;
        // What waited behind the gang demands nodes of its own now.
        autoscaler.request("late").await?;
        autoscaler.nothing_left("g").await
    })
    .await
}

/// The states of a request before its nodes are used, as what has been reported of it.
const STATES: [(&str, &[Report]); 6] = [
    ("created", &[]),
    ("accepted", &[Report::Accepted]),
    ("provisioned", &[Report::Accepted, Report::Provisioned]),
    ("failed", &[Report::Accepted, Report::Failed]),
    (
        "expired",
        &[
            Report::Accepted,
            Report::Provisioned,
            Report::BookingExpired,
        ],
    ),
    (
        "revoked",
        &[
            Report::Accepted,
            Report::Provisioned,
            Report::CapacityRevoked,
        ],
    ),
];

/// Creates a gang of one member for each state, and brings its request there. A request that is over
/// may be deleted already.
async fn in_each_state(autoscaler: &Autoscaler<'_>, t: &Scenario<'_>) -> Result<()> {
    for (name, _) in STATES {
        t.create(gang(name, 1, 8, json!({}))).await?;
    }
    for (name, reports) in STATES {
        let request = autoscaler.request(name).await?;
        for report in reports {
            autoscaler.report(&request, *report).await?;
        }
        if let Some(last) = reports.last() {
            says(t, name, last.message()).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_all_states_go_when_their_gangs_are_suspended_or_deleted() -> Result<()> {
    without_nodes("request-cancel", async |autoscaler, t| {
        in_each_state(autoscaler, t).await?;
        for (name, _) in STATES {
            t.patch_spec(name, json!({"suspend": true})).await?;
        }
        for (name, _) in STATES {
            autoscaler.nothing_left(name).await?;
            let status = t.pod_group(name).await?.status.context("a status")?;
            ensure!(status.demand.is_none(), "{name}: {:?}", status.demand);
        }
        for (name, _) in STATES {
            t.patch_spec(name, json!({"suspend": false})).await?;
        }
        for (name, reports) in STATES {
            let request = autoscaler.request(name).await?;
            for report in reports {
                autoscaler.report(&request, *report).await?;
            }
        }
        for (name, _) in STATES {
            let delete = DeleteParams::background();
            t.workloads().delete(name, &delete).await?;
        }
        for (name, _) in STATES {
            autoscaler.nothing_left(name).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_all_states_go_when_their_gangs_run_on_other_nodes() -> Result<()> {
    without_nodes("request-elsewhere", async |autoscaler, t| {
        in_each_state(autoscaler, t).await?;
        let nodes = i64::try_from(STATES.len())?;
        autoscaler.add_nodes(nodes, json!({}), &[]).await?;
        for (name, _) in STATES {
            t.running(name).await?;
            autoscaler.nothing_left(name).await?;
            let status = t.pod_group(name).await?.status.context("a status")?;
            ensure!(status.demand.is_none(), "{name}: {:?}", status.demand);
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn half_the_nodes_start_no_member_and_the_next_request_brings_the_others() -> Result<()> {
    without_nodes("request-half", async |autoscaler, t| {
        t.create(gang("g", 4, 8, json!({}))).await?;
        let request = autoscaler.request("g").await?;
        autoscaler.report(&request, Report::Accepted).await?;
        autoscaler.report(&request, Report::Provisioned).await?;
        autoscaler.add_nodes(2, json!({}), &[]).await?;
        says(t, "g", Report::Provisioned.message()).await?;
        let since = time_of_day() - PROVISIONED - TimeDelta::seconds(1);
        autoscaler
            .report_since(&request, Report::Provisioned, since)
            .await?;
        failed(t, "g", 1, "").await?;
        says(t, "g", "the nodes of try 1 did not suffice").await?;
        autoscaler.nothing_left("g").await?;
        no_member(t, "g").await?;
        let next = next_try(autoscaler, t, "g", BACKOFFS[0]).await?;
        ensure!(
            next.name() != request.name() && next.nodes()? == 4,
            "{next:?}"
        );
        autoscaler.report(&next, Report::Accepted).await?;
        autoscaler.report(&next, Report::Provisioned).await?;
        autoscaler.add_nodes(2, json!({}), &[]).await?;
        consume(&t.running("g").await?, &next)?;
        autoscaler.nothing_left("g").await
    })
    .await
}

/// A gang whose three requests fail is held.
async fn fails_thrice(autoscaler: &Autoscaler<'_>, t: &Scenario<'_>, name: &str) -> Result<()> {
    let why = within_a_sentence(Report::Failed.message());
    t.create(gang(name, 1, 8, json!({}))).await?;
    let mut request = autoscaler.request(name).await?;
    for (number, wait) in (1..).zip(BACKOFFS) {
        autoscaler.report(&request, Report::Failed).await?;
        failed(t, name, number, why).await?;
        let said = says(t, name, &format!("of try {number} did not suffice")).await?;
        ensure!(said.contains(why) && said.contains("next try at"), "{said}");
        autoscaler.nothing_left(name).await?;
        request = next_try(autoscaler, t, name, wait).await?;
    }
    autoscaler.report(&request, Report::Failed).await?;
    failed(t, name, 3, why).await?;
    let said = t.condition_is(name, types::ADMITTED, false, reasons::NODES_NOT_PROVIDED);
    let said = said.await?;
    ensure!(said.contains(why), "{said}");
    autoscaler.nothing_left(name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_three_failed_requests_a_gang_waits_until_its_spec_changes_or_it_fits() -> Result<()>
{
    without_nodes("request-failed", async |autoscaler, t| {
        try_join(
            fails_thrice(autoscaler, t, "changes"),
            fails_thrice(autoscaler, t, "fits"),
        )
        .await?;
        // No time brings a fourth try.
        wait_shortened(t, "fits", TimeDelta::hours(24)).await?;
        let mut smaller = group("workers", 1, 4);
        smaller["template"]["spec"]["nodeSelector"] =
            json!({lockstep_cluster::manifests::POOL: t.name});
        for change in [
            json!({"suspend": true}),
            json!({"groups": [smaller]}),
            json!({"suspend": false}),
        ] {
            t.patch_spec("changes", change).await?;
        }
        autoscaler.request("changes").await?;
        let status = t.pod_group("changes").await?.status.context("a status")?;
        ensure!(status.demand.is_some_and(|d| d.number == 1));
        autoscaler.nothing_left("fits").await?;
        autoscaler.add_nodes(2, json!({}), &[]).await?;
        t.running("fits").await?;
        t.running("changes").await?;
        let events = t.event_reasons("fits").await?;
        ensure!(
            events.iter().any(|e| e == reasons::NODES_NOT_PROVIDED),
            "{events:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_bookings_and_revoked_nodes_are_followed_by_the_next_request() -> Result<()> {
    without_nodes("request-lost", async |autoscaler, t| {
        for (name, end) in [
            ("expired", Report::BookingExpired),
            ("revoked", Report::CapacityRevoked),
        ] {
            t.create(gang(name, 2, 8, json!({}))).await?;
            let request = autoscaler.request(name).await?;
            autoscaler.report(&request, Report::Accepted).await?;
            autoscaler.report(&request, Report::Provisioned).await?;
            // One of two nodes, which goes again.
            let half = autoscaler.add_nodes(1, json!({}), &[]).await?;
            says(t, name, Report::Provisioned.message()).await?;
            autoscaler.report(&request, end).await?;
            failed(t, name, 1, end.message()).await?;
            says(t, name, end.message()).await?;
            autoscaler.remove_node(&half[0]).await?;
            autoscaler.nothing_left(name).await?;
            no_member(t, name).await?;
            let next = next_try(autoscaler, t, name, BACKOFFS[0]).await?;
            autoscaler.report(&next, Report::Provisioned).await?;
            autoscaler.add_nodes(2, json!({}), &[]).await?;
            consume(&t.running(name).await?, &next)?;
            autoscaler.nothing_left(name).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_chooses_class_and_parameters_and_has_a_pod_set_for_each_group() -> Result<()> {
    without_nodes("request-class", async |autoscaler, t| {
        let spec = json!({"groups": [group("data", 1, 4), group("workers", 2, 8)]});
        let mut chosen = gang("g", 0, 0, spec);
        chosen["metadata"]["annotations"] = json!({
            "training.lockstep.dev/provisioning-class": "queued-provisioning.gke.io",
            "provreq.training.lockstep.dev/maxRunDurationSeconds": "86400",
        });
        t.create(chosen).await?;
        let request = autoscaler.request("g").await?;
        let counts: Vec<i64> = request.pod_sets.iter().map(|(_, count)| *count).collect();
        ensure!(
            request.class() == "queued-provisioning.gke.io"
                && request.parameter("maxRunDurationSeconds") == Some("86400")
                && counts == [1, 2]
                && request.nodes()? == 3,
            "{request:?}"
        );
        autoscaler.report(&request, Report::Provisioned).await?;
        autoscaler.add_nodes(3, json!({}), &[]).await?;
        consume(&t.running("g").await?, &request)?;
        autoscaler.nothing_left("g").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_that_wait_for_something_else_than_nodes_make_no_request() -> Result<()> {
    without_nodes("request-none", async |autoscaler, t| {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "16"}}});
        t.create(quota).await?;
        t.create(gang("suspended", 1, 8, json!({"suspend": true}))).await?;
        t.condition("suspended", types::SUSPENDED).await?;
        t.create(gang("above-quota", 3, 8, json!({}))).await?;
        t.workload("above-quota", "to wait for quota", |w| {
            let status = w.status.as_ref().context("no status")?;
            let admitted = find(&status.conditions, types::ADMITTED).context("no condition")?;
            ensure!(admitted.message.contains("quota"), "{admitted:?}");
            Ok(())
        })
        .await?;
        let mut second = group("workers", 1, 8);
        second["dependsOn"] = json!([{"group": "data", "condition": "Ready"}]);
        let first = group("data", 1, 8);
        let spec = json!({"groups": [first, second], "scheduling": {"gang": {"scope": "Group"}}});
        t.create(gang("depends", 0, 0, spec)).await?;
        // Of its two gangs, the first demands a node.
        let request = autoscaler.request("depends").await?;
        ensure!(request.nodes()? == 1, "{request:?}");
        for name in ["suspended", "above-quota"] {
            let requests = autoscaler.requests_of(name).await?;
            ensure!(requests.is_empty(), "{name}: {requests:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_waits_until_requests_are_served_even_in_their_older_version() -> Result<()> {
    let mut config = patient();
    merge(&mut config, json!({"resyncPeriod": "1s"}));
    // Where lists cannot be streamed, the manager lists in pages.
    let cluster = started(&Options {
        gates: "WatchList=false".into(),
        ..demanding("request-older", AutoscalerMode::ProvisioningRequest, config)
    })
    .await?;
    if !cluster.has_nodes("request-older") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    on_nodes_of(
        &cluster,
        "request-older",
        "v1beta1",
        async |autoscaler, t| {
            t.create(gang("g", 1, 8, json!({}))).await?;
            says(t, "g", "nodes are requested since").await?;
            Autoscaler::serve(&cluster, &["v1beta1"]).await?;
            let request = autoscaler.request("g").await?;
            autoscaler.report(&request, Report::Provisioned).await?;
            autoscaler.add_nodes(1, json!({}), &[]).await?;
            consume(&t.running("g").await?, &request)?;
            autoscaler.nothing_left("g").await
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_preempts_makes_no_request_and_its_victims_do() -> Result<()> {
    let cluster = on_demand().await?;
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "request-preempts", &shape, async |t| {
        let autoscaler = Autoscaler::of(t, "v1");
        let of_class = |name: &str, class: &str| {
            let mut slow = gang(name, 2, 8, json!({"priorityClassName": class}));
            let template = &mut slow["spec"]["groups"][0]["template"]["spec"];
            template["terminationGracePeriodSeconds"] = json!(5);
            slow
        };
        t.create(of_class("victim", "low")).await?;
        t.running("victim").await?;
        t.create(of_class("vip", "high")).await?;
        t.running("vip").await?;
        let request = autoscaler.request("victim").await?;
        let of_vip = |w: &lockstep_cluster::audit::Write| {
            w.resource == "provisioningrequests" && w.verb == "create" && w.name != request.name()
        };
        let writes = t.manager_writes()?;
        ensure!(
            !writes.iter().any(of_vip),
            "the preemptor has made a request"
        );
        autoscaler.report(&request, Report::Failed).await?;
        says(t, "victim", Report::Failed.message()).await.map(drop)
    })
    .await
}
