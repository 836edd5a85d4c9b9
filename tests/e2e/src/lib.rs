//! What the scenarios share: one cluster per test program, with one manager.

pub mod wrapped;

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::install::Method;
use lockstep_cluster::manifests::merge;
use lockstep_cluster::{Cluster, Options};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Priority classes of the shared cluster, by rising value.
pub const CLASSES: [(&str, i32); 3] = [("low", 100), ("middle", 500), ("high", 1000)];

static SHARED: OnceCell<(Cluster, Option<Manager>)> = OnceCell::const_new();

/// The cluster that all tests of this program share, started by the first of them.
pub async fn cluster() -> Result<&'static Cluster> {
    let (cluster, _manager) = SHARED
        .get_or_try_init(async || {
            let cluster = fresh("shared", patient()).await?;
            // On a cluster that is not ours the deployed one acts.
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

/// A cluster of one test's own, without a manager. `config` is merged over the quick configuration.
pub async fn fresh(name: &str, config: Value) -> Result<Cluster> {
    installed(name, config, Method::Shipped).await
}

/// The same, installed in some way.
pub async fn installed(name: &str, config: Value, method: Method) -> Result<Cluster> {
    let mut merged = quick();
    merge(&mut merged, config);
    let cluster = Cluster::start(&Options {
        config: merged,
        method,
        ..Options::named(name)
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

/// Configuration under which tests need not wait for minutes: what is measured in tens of seconds
/// on a real cluster is measured in seconds here.
fn quick() -> Value {
    json!({
        "leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"},
        // Less than the renew deadline: a write ends before leadership does.
        "client": {"writeTimeout": "2s", "watchBackoffMin": "100ms"},
        "workloads": {
            "retryMax": "2s", "incidentBackoffMin": "1s", "placementBackoffMin": "1s", "refusalRetry": "2s",
        },
        "scheduler": {"refusedPin": "1s", "growAfter": "2s"},
    })
}

/// The lease as on a real cluster, for tests that are not about it: a manager on a busy machine
/// that misses the quick one ends, and nobody starts it again.
pub fn patient() -> Value {
    json!({"leaderElection": null})
}

/// What a user who writes a timestamp into an object reads off the clock.
#[allow(
    clippy::disallowed_methods,
    reason = "a scenario plays the user, who has no other clock"
)]
pub fn time_of_day() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

/// A number that `make test-full` sets in the environment, and what it is otherwise.
pub fn number<T: FromStr<Err: Display>>(variable: &str, otherwise: T) -> Result<T> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(otherwise);
    };
    text.parse()
        .map_err(|error| anyhow!("{variable}={text}: {error}"))
}
