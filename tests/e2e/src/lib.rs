//! Common code of the scenarios: one cluster per test program, with one manager.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Result, anyhow, ensure};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use kube::Api;
use kube::api::ListParams;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::install::Method;
use lockstep_cluster::manifests::merge;
use lockstep_cluster::scenario::{PATIENCE, Scenario};
use lockstep_cluster::{Cluster, Options, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub mod upstream;

/// Priority classes of the shared cluster, in ascending order.
pub const CLASSES: [(&str, i32); 3] = [("low", 100), ("middle", 500), ("high", 1000)];

static SHARED: OnceCell<(Cluster, Option<Manager>)> = OnceCell::const_new();

/// The cluster of all tests of this program, started by the first test.
pub async fn cluster() -> Result<&'static Cluster> {
    let (cluster, _manager) = SHARED
        .get_or_try_init(async || {
            let cluster = fresh("shared", patient()).await?;
            // On a cluster that existed before, its deployed manager is used.
            let ours = cluster.is_ours("a manager of our own");
            let manager = if ours {
                Some(cluster.start_manager("a").await?)
            } else {
                None
            };
            anyhow::Ok((cluster, manager))
        })
        .await?;
    Ok(cluster)
}

/// A separate cluster for a test, without a manager. `config` is merged over the quick
/// configuration.
pub async fn fresh(name: &str, config: Value) -> Result<Cluster> {
    installed(name, config, Method::Shipped).await
}

/// Like [`fresh`], installed with this method.
pub async fn installed(name: &str, config: Value, method: Method) -> Result<Cluster> {
    let options = Options {
        method,
        ..Options::named(name)
    };
    started(options, config).await
}

/// Feature gate of native groups.
pub const NATIVE_GATE: &str = "GenericWorkload=true";

/// Argument by which the API server serves a version of native groups.
pub fn native_version(version: &str) -> String {
    format!("--runtime-config=scheduling.k8s.io/{version}=true")
}

/// The same on a control plane with native groups. The manager tests the API server every second.
pub async fn native(name: &str, config: Value) -> Result<Cluster> {
    let options = Options {
        gates: NATIVE_GATE.into(),
        api_server: vec![native_version("v1beta1")],
        ..Options::named(name)
    };
    let mut merged = json!({"resyncPeriod": "1s"});
    merge(&mut merged, config);
    started(options, merged).await
}

/// Native pod groups of a scenario.
pub async fn native_groups(t: &Scenario<'_>) -> Result<Vec<PodGroup>> {
    let groups: Api<PodGroup> = Api::namespaced(t.client.clone(), &t.name);
    Ok(groups.list(&ListParams::default()).await?.items)
}

/// Waits until the scenario has no native objects.
pub async fn no_native_groups(t: &Scenario<'_>) -> Result<()> {
    eventually("no native objects", PATIENCE, async || {
        let all = "workloads.scheduling.k8s.io,podgroups.scheduling.k8s.io";
        let left = t.kubectl(&["get", all, "-o", "name"]).await?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .await
}

async fn started(options: Options, config: Value) -> Result<Cluster> {
    let mut merged = quick();
    merge(&mut merged, config);
    let cluster = Cluster::start(&Options {
        config: merged,
        ..options
    })
    .await?;
    for (class, value) in CLASSES
        .into_iter()
        .filter(|_| cluster.is_ours("priority classes"))
    {
        let value = value.to_string();
        cluster
            .kubectl(&["create", "priorityclass", class, "--value", &value])
            .await?;
    }
    Ok(cluster)
}

/// Configuration with seconds instead of the tens of seconds of a real cluster, so that tests are
/// short.
fn quick() -> Value {
    json!({
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"},
        // Less than the renew deadline, so that writes end before leadership does.
        "client": {"writeTimeout": "2s", "watchBackoffMin": "100ms"},
        "workloads": {
            "retryMax": "2s", "incidentBackoffMin": "1s", "placementBackoffMin": "1s", "refusalRetry": "2s",
        },
        "scheduler": {"refusedPin": "1s", "growAfter": "2s"},
    })
}

/// The default lease, for tests of other features: on a busy machine, a manager would lose the
/// quick lease and end, and nothing would restart it.
pub fn patient() -> Value {
    json!({"leaderElection": null})
}

/// Current time, as users write it into timestamps of objects.
#[allow(
    clippy::disallowed_methods,
    reason = "a scenario plays the user, who has no other clock"
)]
pub fn time_of_day() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

/// A number from the environment, set by `make test-full`, or this default.
pub fn number<T: FromStr<Err: Display>>(variable: &str, otherwise: T) -> Result<T> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(otherwise);
    };
    text.parse()
        .map_err(|error| anyhow!("{variable}={text}: {error}"))
}
