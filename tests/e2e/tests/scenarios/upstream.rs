//! Upstream's tests of native groups (`lockstep_e2e::upstream`) with workloads of Lockstep, once for
//! each backend. `make test` runs the first family, `make test-full` all.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::ops::RangeBounds;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::condition::{find, is_true, types};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{self, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::Scenario;
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::upstream::{Case, Ends, Job, Kind, Outcome, families, tables};
use lockstep_e2e::{native, with_backend};
use serde_json::{Value, json};

/// For starts, evictions and growth, of several cases at a time.
const PATIENCE: Duration = Duration::from_mins(1);
/// Cases that run at a time.
const AT_ONCE: usize = 4;

/// The object of a job.
fn manifest(job: &Job, pool: &str, backend: &str) -> Result<Value> {
    let parse = |text: &str| serde_json::from_str(if text.is_empty() { "{}" } else { text });
    let app = job.name.split('-').next().unwrap_or_default();
    let mut pods: Value = parse(job.pod)?;
    pods["priorityClassName"] = json!(job.class);
    if let Some(node) = job.node {
        pods["nodeSelector"] = json!({"kubernetes.io/hostname": format!("{pool}-{node:04}")});
    }
    let workload = match job.kind {
        Kind::Pod => {
            let mut object = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": job.name, "labels": {"app": app}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "trainer",
                    "image": "registry.example/trainer:1",
                    "resources": {"limits": {"nvidia.com/gpu": job.gpus.to_string()}}}]}});
            merge(&mut object["spec"], pods);
            return Ok(object);
        }
        Kind::Gang => json!({}),
        Kind::Single => json!({"scheduling": {"disruptionMode": "Single"}}),
        Kind::Basic => json!({"scheduling": {"policy": "Basic"}}),
    };
    let mut object = manifests::gang(job.name, job.members, job.gpus, workload);
    merge(
        &mut object["spec"],
        with_backend(backend, parse(job.workload)?),
    );
    object["spec"]["priorityClassName"] = pods["priorityClassName"].take();
    pods.as_object_mut()
        .context("pods")?
        .remove("priorityClassName");
    let template = json!({"metadata": {"labels": {"app": app}}, "spec": pods});
    merge(&mut object["spec"]["groups"][0]["template"], template);
    Ok(object)
}

/// Pods of a job that are bound and not being deleted, by UID.
async fn bound(t: &Scenario<'_>, job: &Job) -> Result<BTreeSet<String>> {
    let pods = match job.kind {
        Kind::Pod => {
            let named = ListParams::default().fields(&format!("metadata.name={}", job.name));
            t.all_pods().list(&named).await?.items
        }
        Kind::Gang | Kind::Single | Kind::Basic => t.pods(job.name).await?,
    };
    let holds = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_ref());
        node.is_some() && pod.metadata.deletion_timestamp.is_none()
    };
    Ok(pods
        .iter()
        .filter(|pod| holds(pod))
        .filter_map(ResourceExt::uid)
        .collect())
}

/// Waits until this number of members of a job is bound.
async fn has_bound(t: &Scenario<'_>, job: &Job, members: i32) -> Result<BTreeSet<String>> {
    let what = format!("{} to have {members} bound members", job.name);
    eventually(&what, PATIENCE, async || {
        let bound = bound(t, job).await?;
        ensure!(bound.len() == members as usize, "{}", bound.len());
        Ok(bound)
    })
    .await
}

/// Waits until the scheduler has found no place for a job.
async fn is_refused(t: &Scenario<'_>, name: &str) -> Result<()> {
    t.workload(name, "to be unschedulable", |w| {
        let status = w.status.as_ref().context("status")?;
        let admitted = find(&status.conditions, types::ADMITTED).context("Admitted")?;
        let decided = !is_true(&status.conditions, types::ADMITTED)
            && (!admitted.message.starts_with("waiting")
                || admitted.message.contains("cannot be satisfied"));
        ensure!(decided, "{}: {}", admitted.reason, admitted.message);
        Ok(())
    })
    .await
    .map(drop)
}

/// Plays the story of a case and compares its end.
async fn play(t: &Scenario<'_>, backend: &str, case: &Case, ends: &Ends) -> Result<()> {
    if !case.object.is_empty() {
        t.create(serde_json::from_str(case.object)?).await?;
    }
    let mut earlier = BTreeMap::new();
    for job in &case.before {
        t.create(manifest(job, &t.name, backend)?).await?;
        let pods = has_bound(t, job, job.members).await?;
        if job.kind != Kind::Pod {
            t.running(job.name).await?;
        }
        earlier.insert(job.name, pods);
    }
    for job in &case.then {
        t.create(manifest(job, &t.name, backend)?).await?;
    }
    let named = |name: &str| {
        let jobs = case.before.iter().chain(&case.then);
        jobs.clone()
            .find(|job| job.name == name)
            .with_context(|| format!("no job {name}"))
    };
    if ends.one_of {
        one_runs(t, case, ends).await?;
    } else {
        for (name, members) in &ends.runs {
            has_bound(t, named(name)?, *members).await?;
        }
    }
    for name in &ends.waits {
        is_refused(t, name).await?;
        ensure!(bound(t, named(name)?).await?.is_empty(), "{name} is bound");
    }
    for job in &case.before {
        let evicted = ends.evicted.iter().find(|(name, _)| *name == job.name);
        let evicted = evicted.map_or(0, |(_, members)| *members);
        let pods = &earlier[job.name];
        let what = format!("{} to lose {evicted} members", job.name);
        eventually(&what, PATIENCE, async || {
            let left = bound(t, job).await?.intersection(pods).count();
            ensure!(left as i32 == job.members - evicted, "{left} are left");
            Ok(())
        })
        .await?;
    }
    if let Some((deleted, runs)) = &case.later {
        let kind = match named(deleted)?.kind {
            Kind::Pod => "pod",
            Kind::Gang | Kind::Single | Kind::Basic => "tw",
        };
        t.kubectl(&["delete", kind, deleted, "--wait=false"])
            .await?;
        for (name, members) in runs {
            has_bound(t, named(name)?, *members).await?;
        }
    }
    Ok(())
}

/// Waits until one of the new jobs runs whole, and no member of the other is bound.
async fn one_runs(t: &Scenario<'_>, case: &Case, ends: &Ends) -> Result<()> {
    let winner = eventually("one gang to run", PATIENCE, async || {
        let mut whole = Vec::new();
        for job in &case.then {
            match bound(t, job).await?.len() as i32 {
                0 => {}
                n if n == job.members => whole.push(job.name),
                n => bail!("{n} members of {} are bound", job.name),
            }
        }
        ensure!(whole.len() == 1, "{whole:?}");
        Ok(whole[0])
    })
    .await?;
    let other = ends.runs.iter().find(|(name, _)| *name != winner);
    is_refused(t, other.context("two gangs")?.0).await
}

/// Plays the cases of these families with a backend. Fails with all cases that end otherwise.
async fn replay(backend: &str, which: impl RangeBounds<usize>) -> Result<()> {
    let short = backend.to_lowercase();
    let cluster = native().await?;
    if !cluster.has_nodes("upstream's tests") {
        return Ok(());
    }
    let families = families().into_iter().enumerate();
    let cases: Vec<(usize, Case)> = families
        .flat_map(|(family, (_, cases))| cases.into_iter().map(move |case| (family, case)))
        .collect();
    let replayed = cases
        .iter()
        .enumerate()
        .filter(|(_, (family, _))| which.contains(family))
        .filter_map(|(n, (_, case))| match case.outcome(backend) {
            Outcome::Replayed(ends) => Some((n, case, ends)),
            Outcome::NotApplicable(_) => None,
        });
    let results: Vec<(&str, Result<()>)> = stream::iter(replayed)
        .map(|(n, case, ends)| one(cluster, backend, format!("{short}-{n}"), case, ends))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let number = results.len();
    let failed = results.into_iter().filter_map(|(name, result)| {
        let error = result.err()?;
        Some(format!("{name}: {error:#}"))
    });
    let failed: Vec<String> = failed.collect();
    writeln!(
        std::io::stderr(),
        "upstream's tests with backend {backend}: {number} replayed, {} failed",
        failed.len()
    )?;
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

async fn one<'c>(
    cluster: &Cluster,
    backend: &str,
    pool: String,
    case: &'c Case,
    ends: &Ends,
) -> (&'c str, Result<()>) {
    let shape = Shape {
        nodes: case.nodes,
        gpus: case.gpus,
        racks: case.racks,
        agents: false,
        args: vec!["--latency-profile=zero".into()],
        ..Shape::default()
    };
    let story = scenario(cluster, &pool, &shape, async |t| {
        play(t, backend, case, ends).await
    });
    (case.upstream[0], Box::pin(story).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_tests_of_native_groups_pass_with_backend_both() -> Result<()> {
    replay("Both", ..1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_tests_of_native_groups_pass_with_backend_kubernetes() -> Result<()> {
    replay("Kubernetes", ..1).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make test-full"]
async fn the_rest_of_upstream_tests_passes_with_backend_both() -> Result<()> {
    replay("Both", 1..).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make test-full"]
async fn the_rest_of_upstream_tests_passes_with_backend_kubernetes() -> Result<()> {
    replay("Kubernetes", 1..).await
}

#[test]
fn the_documentation_has_the_tables_of_the_replayed_tests() -> Result<()> {
    const BEGIN: &str = "<!-- begin of the replayed tests -->\n";
    const END: &str = "\n<!-- end of the replayed tests -->";
    let path = repository().join("docs/testing.md");
    let page = std::fs::read_to_string(&path)?;
    let (before, rest) = page.split_once(BEGIN).context("the begin")?;
    let (found, after) = rest.split_once(END).context("the end")?;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let page = format!("{before}{BEGIN}{}{END}{after}", tables());
        return Ok(std::fs::write(path, page)?);
    }
    ensure!(found == tables(), "UPDATE_GOLDEN=1 writes docs/testing.md");
    Ok(())
}

#[test]
fn a_case_has_one_end_for_each_of_its_new_jobs() -> Result<()> {
    for case in families().into_iter().flat_map(|(_, cases)| cases) {
        for outcome in ["Both", "Kubernetes"].map(|backend| case.outcome(backend)) {
            let Outcome::Replayed(ends) = outcome else {
                continue;
            };
            for job in &case.then {
                let runs = ends.runs.iter().filter(|(name, _)| *name == job.name);
                let waits = ends.waits.iter().filter(|name| **name == job.name);
                let number = runs.count() + waits.count();
                let (cases, name) = (&case.upstream, job.name);
                ensure!(number == 1, "{cases:?}: {number} ends of {name}");
            }
        }
    }
    Ok(())
}
