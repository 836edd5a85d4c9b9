//! Common code of the scenarios: the control planes that they share.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Result, anyhow, ensure};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use kube::Api;
use kube::api::ListParams;
use lockstep_api::names;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_cluster::autoscaler::Autoscaler;
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::install::{self, Method};
use lockstep_cluster::manifests::merge;
use lockstep_cluster::scenario::{PATIENCE, Scenario};
use lockstep_cluster::{Cluster, Options, eventually};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};

pub mod upstream;

/// Priority classes of the shared cluster, in ascending order.
pub const CLASSES: [(&str, i32); 3] = [("low", 100), ("middle", 500), ("high", 1000)];

type Shared = OnceCell<(Cluster, Option<Manager>)>;

static SHARED: Shared = Shared::const_new();
static NATIVE: Shared = Shared::const_new();
static ON_DEMAND: Shared = Shared::const_new();

/// The cluster of all tests of this program, started by the first test.
pub async fn cluster() -> Result<&'static Cluster> {
    let (cluster, _manager) = SHARED
        .get_or_try_init(async || with_manager(fresh("shared", patient()).await?).await)
        .await?;
    Ok(cluster)
}

/// The cluster of all tests of native groups. The backend of the installation is Lockstep, and
/// workloads choose theirs by [`with_backend`].
pub async fn native() -> Result<&'static Cluster> {
    let (cluster, _manager) = NATIVE
        .get_or_try_init(async || {
            let options = short(with_groups("native"), native_config(patient()));
            let cluster = started(&options).await?;
            if cluster.is_ours("a priority class") {
                // Gangs of this class preempt no work.
                let class = [
                    "create",
                    "priorityclass",
                    "patient",
                    "--value=1000",
                    "--preemption-policy=Never",
                ];
                cluster.kubectl(&class).await?;
            }
            with_manager(cluster).await
        })
        .await?;
    Ok(cluster)
}

/// The cluster of all tests of `ProvisioningRequest`s, whose autoscaler the tests play.
pub async fn on_demand() -> Result<&'static Cluster> {
    let (cluster, _manager) = ON_DEMAND
        .get_or_try_init(async || {
            let mode = AutoscalerMode::ProvisioningRequest;
            let cluster = started(&demanding("on-demand", mode, patient())).await?;
            if cluster.is_ours("the definition of requests") {
                Autoscaler::serve(&cluster, &["v1", "v1beta1"]).await?;
            }
            with_manager(cluster).await
        })
        .await?;
    Ok(cluster)
}

/// A cluster with nodes on demand in this mode. `config` is merged over the quick configuration.
pub fn demanding(name: &str, mode: AutoscalerMode, mut config: Value) -> Options {
    merge(&mut config, json!({"autoscaler": {"mode": mode}}));
    let component = match mode {
        AutoscalerMode::Off => None,
        AutoscalerMode::ProvisioningRequest => Some("provisioning-requests"),
        AutoscalerMode::Pods => Some("signal-pods"),
    };
    let options = Options {
        components: component.into_iter().collect(),
        ..Options::named(name)
    };
    short(options, config)
}

/// On a cluster that existed before, its deployed manager is used.
async fn with_manager(cluster: Cluster) -> Result<(Cluster, Option<Manager>)> {
    let manager = if cluster.is_ours("a manager of our own") {
        Some(cluster.start_manager("a").await?)
    } else {
        None
    };
    Ok((cluster, manager))
}

/// A spec with the workload's choice of a backend.
pub fn with_backend(name: &str, mut spec: Value) -> Value {
    merge(&mut spec, json!({"scheduling": {"backend": name}}));
    spec
}

/// A control plane for tests that start managers or change the installation, one test at a time.
/// Before each test the manifests are applied again, so a test removes only what it adds to them.
pub struct InTurn {
    name: &'static str,
    options: fn(&str) -> Options,
    /// Number of control planes so far, and the current one.
    state: Mutex<(usize, Option<Cluster>)>,
}

/// Without native groups.
pub static IN_TURN: InTurn = InTurn::new("in-turn", Options::named);
/// With native groups.
pub static NATIVE_IN_TURN: InTurn = InTurn::new("native-in-turn", with_groups);

impl InTurn {
    const fn new(name: &'static str, options: fn(&str) -> Options) -> Self {
        let state = Mutex::const_new((0, None));
        Self {
            name,
            options,
            state,
        }
    }

    /// Runs a test. `config` is merged over the quick configuration. After a failure, the next test
    /// gets a new control plane.
    pub async fn run(
        &self,
        test: &str,
        config: Value,
        body: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock().await;
        let last = state.1.take();
        state.0 += usize::from(last.is_none());
        let name = format!("{}-{}", self.name, state.0);
        let options = short((self.options)(&name), config);
        let mut cluster = match last {
            Some(cluster) => cluster,
            None => started(&options).await?,
        };
        if cluster.is_ours(test) {
            cluster.install(&options).await?;
            // The last test may have killed the leader.
            let (namespace, _) = install::MANAGER;
            let lease = ["delete", "lease", names::LEASE, "--ignore-not-found"];
            cluster
                .kubectl(&[&lease[..], &["-n", namespace]].concat())
                .await?;
            body(&mut cluster).await?;
        }
        state.1 = Some(cluster);
        Ok(())
    }
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
    started(&short(options, config)).await
}

/// Feature gate of native groups.
pub const NATIVE_GATE: &str = "GenericWorkload=true";

/// Argument by which the API server serves a version of native groups.
pub fn native_version(version: &str) -> String {
    format!("--runtime-config=scheduling.k8s.io/{version}=true")
}

/// A control plane with native groups.
fn with_groups(name: &str) -> Options {
    Options {
        gates: NATIVE_GATE.into(),
        api_server: vec![native_version("v1beta1")],
        ..Options::named(name)
    }
}

/// Configuration of a manager that tests the API server every second.
pub fn native_config(mut config: Value) -> Value {
    merge(&mut config, json!({"resyncPeriod": "1s"}));
    config
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

/// Options with this configuration, merged over the quick configuration.
fn short(options: Options, config: Value) -> Options {
    let mut merged = quick();
    merge(&mut merged, config);
    Options {
        config: merged,
        ..options
    }
}

/// A separate cluster with these options and the priority classes, without a manager.
pub async fn started(options: &Options) -> Result<Cluster> {
    let cluster = Cluster::start(options).await?;
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

/// A number from the environment, set by `make test-full`, or this default.
pub fn number<T: FromStr<Err: Display>>(variable: &str, otherwise: T) -> Result<T> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(otherwise);
    };
    text.parse()
        .map_err(|error| anyhow!("{variable}={text}: {error}"))
}
