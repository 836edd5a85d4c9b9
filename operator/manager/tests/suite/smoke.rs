//! The whole manager as one future with a fake API server, under paused time.

use std::sync::Arc;
use std::time::Duration;

use crate::documented::{PAGE, undocumented};
use crate::fake_api::{FakeApi, StreamFailure};
use chrono::{DateTime, Utc};
use http::{Request, StatusCode};
use kube::Client;
use kube::client::Body;
use lockstep_common::endpoints::SharedRegistry;
use lockstep_manager::api::clients::Transports;
use lockstep_manager::clock::{Clock, Random, SystemClock};
use lockstep_manager::config::Config;
use lockstep_manager::health::Health;
use lockstep_manager::{Deps, RunError, run};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

pub const WORKLOADS: &str = "apis/training.lockstep.dev/v1alpha1/trainingworkloads";
const LEASES: &str = "apis/coordination.k8s.io/v1/leases";
pub const PODS: &str = "api/v1/pods";

/// A wall clock that follows tokio's clock.
struct TokioClock {
    origin: DateTime<Utc>,
    started: Instant,
}

impl TokioClock {
    fn starting_at(origin: DateTime<Utc>) -> Self {
        Self {
            origin,
            started: SystemClock.monotonic(),
        }
    }
}

impl Clock for TokioClock {
    fn wall(&self) -> DateTime<Utc> {
        let passed = self.monotonic() - self.started;
        self.origin + chrono::Duration::from_std(passed).unwrap()
    }
}

pub fn deps(api: &FakeApi, identity: &str, stop: &CancellationToken) -> Deps {
    let config = Config::parse("{resyncPeriod: 5s}").unwrap();
    Deps {
        transports: Transports {
            read: api.client(),
            write: api.client(),
            lease: api.client(),
        },
        clock: Arc::new(TokioClock::starting_at(
            DateTime::from_timestamp(1_795_000_000, 0).unwrap(),
        )),
        random: Random::seeded(7),
        preemption: watch::channel(config.scheduler.preemption.enabled).1,
        node_health: watch::channel(config.node_health.mode).1,
        config,
        identity: identity.into(),
        namespace: "lockstep-system".into(),
        registry: SharedRegistry::default(),
        workload_registry: SharedRegistry::default(),
        health: Health::default(),
        stop: stop.clone(),
    }
}

pub fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.37.2"}}})
}

fn two_nodes() -> FakeApi {
    let api = FakeApi::new();
    for name in ["n1", "n2"] {
        api.put("api/v1/nodes", node(name));
    }
    api
}

pub fn workload(name: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": "ml", "generation": 1},
        "spec": {"groups": [{"name": "workers", "size": 2, "template": {"spec": {"containers": [
            {"name": "trainer", "image": "train:1", "resources": {"requests": {"cpu": "4"}}}]}}}]}})
}

/// Writes outside of the election.
fn work_writes(api: &FakeApi) -> Vec<String> {
    api.writes()
        .into_iter()
        .filter(|w| !w.contains("/leases"))
        .collect()
}

fn scrape(registry: &SharedRegistry) -> String {
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry.lock()).unwrap();
    metrics
}

fn holder(leases: &[Value]) -> Option<&str> {
    leases.first()?["spec"]["holderIdentity"].as_str()
}

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(2), what)
        .await
        .expect("within two minutes of simulated time")
}

/// Runs a manager with this configuration until the story ends.
async fn with_config(api: &FakeApi, config: &str, story: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let mut deps = deps(api, "a", &stop);
    deps.config = Config::parse(config).unwrap();
    tokio::select! {
        () = story => {}
        ended = run(deps) => panic!("{ended:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_autoscaler_and_kueue_none_of_their_objects_are_requested() {
    let mut requested = Vec::new();
    for config in [
        "{}",
        "{autoscaler: {mode: Pods}}",
        "{kueue: {enabled: true}}",
    ] {
        let api = two_nodes();
        api.serve("kueue.x-k8s.io", "v1beta2", "workloads", "Workload");
        api.put(WORKLOADS, workload("llama"));
        let started = async {
            within(api.until(WORKLOADS, |w| w[0]["status"]["phase"] == "Starting")).await;
            tokio::time::sleep(Duration::from_mins(1)).await;
        };
        with_config(&api, config, started).await;
        requested.push(api.requested());
    }
    let of_neighbours = |resource: &&String| {
        let all = ["podtemplates", "autoscaling.x-k8s.io", "kueue.x-k8s.io"];
        all.iter().any(|part| resource.contains(part))
    };
    assert_eq!(requested[0].iter().find(of_neighbours), None);
    assert_eq!(requested[0], requested[1], "signal pods are pods");
    let of_kueue = requested[2].iter().find(of_neighbours).unwrap();
    assert!(of_kueue.contains("kueue.x-k8s.io"), "{of_kueue}");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_made_in_the_served_version_while_the_gang_lacks_nodes() {
    const TEMPLATES: &str = "api/v1/podtemplates";
    const REQUESTS: &str = "apis/autoscaling.x-k8s.io/v1beta1/provisioningrequests";
    let api = FakeApi::new();
    api.serve(
        "autoscaling.x-k8s.io",
        "v1beta1",
        "provisioningrequests",
        "ProvisioningRequest",
    );
    api.put(WORKLOADS, workload("llama"));
    let story = async {
        within(api.until(REQUESTS, |requests| requests.len() == 1)).await;
        let request = &api.all(REQUESTS)[0];
        assert_eq!(request["apiVersion"], "autoscaling.x-k8s.io/v1beta1");
        let set = &request["spec"]["podSets"][0];
        assert_eq!(set["count"], 2);
        let template = &api.all(TEMPLATES)[0];
        assert_eq!(set["podTemplateRef"]["name"], template["metadata"]["name"]);
        for name in ["n1", "n2"] {
            api.put("api/v1/nodes", node(name));
        }
        within(api.until(PODS, |pods| pods.len() == 2)).await;
        within(api.until(REQUESTS, <[Value]>::is_empty)).await;
        within(api.until(TEMPLATES, <[Value]>::is_empty)).await;
    };
    with_config(&api, "{autoscaler: {mode: ProvisioningRequest}}", story).await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_gets_its_pods_and_a_stopped_manager_releases_its_lease() {
    let api = two_nodes();
    api.put(WORKLOADS, workload("llama"));
    let stop = CancellationToken::new();
    let deps = deps(&api, "a", &stop);
    let registry = deps.registry.clone();
    let mut manager = Box::pin(run(deps));
    let story = async {
        within(api.until(PODS, |pods| pods.len() == 2)).await;
        within(api.until(WORKLOADS, |w| w[0]["status"]["phase"] == "Starting")).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let written = work_writes(&api);
        // About ten resyncs.
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(
            work_writes(&api),
            written,
            "nothing changes, so nothing is written"
        );
        let metrics = scrape(&registry);
        for line in [
            "leader_election_master_status{name=\"lockstep-manager\"} 1",
            "lockstep_workloads{phase=\"Starting\"} 1",
            "lockstep_workloads{phase=\"Failed\"} 0",
            "lockstep_workload_conditions{namespace=\"ml\",condition=\"Admitted\",status=\"True\",reason=\"Scheduled\"} 1",
            "lockstep_workload_conditions{namespace=\"ml\",condition=\"Stalled\",status=\"False\",reason=\"Progressing\"} 1",
            "lockstep_gangs{state=\"placed\"} 1",
            "lockstep_placements_total 1",
            "lockstep_scheduler_cycle_seconds_count{kind=\"placement\",result=\"changes\"} 1",
            "lockstep_index_objects{kind=\"Pod\"} 2",
            "rest_client_requests_total{code=\"201\",method=\"POST\"}",
            "controller_runtime_reconcile_total{controller=\"trainingworkload\",result=\"requeue\"}",
            "workqueue_depth{name=\"trainingworkload\"} 0",
            "workqueue_longest_running_processor_seconds{name=\"trainingworkload\"} 0.0",
            "controller_runtime_active_workers{controller=\"trainingworkload\"} 0",
            "controller_runtime_reconcile_panics_total{controller=\"trainingworkload\"} 0",
            "rest_client_request_duration_seconds_count{verb=\"POST\"}",
            "lockstep_queue_wait_seconds_count{priority_class=\"\",how=\"free\"} 1",
            "lockstep_condition_transitions_total{condition=\"Admitted\",status=\"True\",reason=\"Scheduled\"} 1",
            "lockstep_condition_oldest_seconds{condition=\"Admitted\",status=\"True\"} 70",
            "lockstep_nodes_without_agent 1",
            "lockstep_agents{state=\"ready\"} 0",
            "lockstep_accelerators_outranked 0",
            "lockstep_preemption_intents_withdrawn_total{reason=\"overdue\"} 0",
            "lockstep_lost_accelerator_seconds_total{namespace=\"ml\",cause=\"Preempted\"} 0",
        ] {
            assert!(metrics.contains(line), "{line}\n{metrics}");
        }
        assert_eq!(undocumented(&metrics, PAGE), Vec::<&str>::new());
        stop.cancel();
    };
    tokio::select! {
        ended = &mut manager => ended.expect("the manager runs on"),
        () = story => {}
    }
    within(manager).await.unwrap();
    assert_eq!(holder(&api.all(LEASES)), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_manager_lists_in_pages_where_streamed_lists_fail() {
    let invalid = StatusCode::UNPROCESSABLE_ENTITY;
    let not_enabled =
        "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    // For example etcd before 3.4.31 or 3.5.13 with Kubernetes 1.36.
    let internal = StatusCode::INTERNAL_SERVER_ERROR;
    let old_etcd = "required storage feature RequestWatchProgress is disabled: InternalError";
    let failures = [
        None,
        Some(StreamFailure::Refused(invalid, "Invalid", not_enabled)),
        Some(StreamFailure::Refused(internal, "InternalError", old_etcd)),
        Some(StreamFailure::Error(internal, "InternalError", old_etcd)),
        Some(StreamFailure::Error(StatusCode::GONE, "Expired", "too old")),
        Some(StreamFailure::Closed),
    ];
    for failure in failures {
        let api = two_nodes();
        api.put(WORKLOADS, workload("llama"));
        if let Some(failure) = failure {
            api.fail_streamed_lists(failure);
        }
        let stop = CancellationToken::new();
        let deps = deps(&api, "a", &stop);
        let health = deps.health.clone();
        let manager = run(deps);
        let story = async {
            within(api.until(PODS, |pods| pods.len() == 2)).await;
            assert_eq!(health.readiness(), Ok("ok\n".to_owned()), "{failure:?}");
            assert_eq!(api.paged_lists() > 0, failure.is_some(), "{failure:?}");
            // A change after the list arrives through the watch.
            api.put(WORKLOADS, workload("lora"));
            within(api.until(PODS, |pods| pods.len() == 4)).await;
        };
        tokio::select! {
            ended = manager => panic!("{ended:?}"),
            () = story => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_manager_writes_nothing_but_its_lease_until_the_first_is_gone() {
    let api = FakeApi::new();
    let stop = CancellationToken::new();
    let both = [deps(&api, "a", &stop), deps(&api, "b", &stop)];
    let registries = [both[0].registry.clone(), both[1].registry.clone()];
    let [mut first, mut second] = both.map(|deps| Box::pin(run(deps)));
    let leads = |name: &'static str| within(api.until(LEASES, move |l| holder(l) == Some(name)));
    tokio::select! {
        biased;
        ended = &mut first => ended.unwrap(),
        ended = &mut second => ended.unwrap(),
        () = leads("a") => {}
    }
    tokio::select! {
        biased;
        ended = &mut first => ended.unwrap(),
        ended = &mut second => ended.unwrap(),
        () = tokio::time::sleep(Duration::from_mins(1)) => {}
    }
    assert_eq!(holder(&api.all(LEASES)), Some("a"));
    assert_eq!(work_writes(&api), Vec::<String>::new());
    for (registry, leads) in registries.iter().zip([true, false]) {
        let metrics = scrape(registry);
        assert!(metrics.contains("lockstep_index_objects"));
        let counts_objects = metrics.contains("lockstep_workloads{");
        assert_eq!(
            counts_objects, leads,
            "sums over the replicas are to be right"
        );
    }
    // Dropping the future simulates a crash without a release.
    drop(first);
    tokio::select! {
        biased;
        ended = &mut second => ended.unwrap(),
        () = leads("b") => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_whose_lease_is_taken_ends_with_an_error() {
    let api = FakeApi::new();
    let stop = CancellationToken::new();
    let manager = run(deps(&api, "a", &stop));
    let thief = async {
        within(api.until(LEASES, |l| holder(l) == Some("a"))).await;
        api.merge(
            LEASES,
            "lockstep-leader",
            &json!({"spec": {"holderIdentity": "thief"}}),
        );
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = within(manager) => ended,
        () = thief => Ok(()),
    };
    assert!(matches!(ended, Err(RunError::Lease(_))), "{ended:?}");
}

/// A client of a server that answers while `answers` is true.
fn switchable(api: &FakeApi, answers: &watch::Receiver<bool>) -> Client {
    let (client, answers) = (api.client(), answers.clone());
    let service = service_fn(move |request: Request<Body>| {
        let (client, answers) = (client.clone(), *answers.borrow());
        async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(service, "default")
}

/// Waits until the metric shows whether the manager leads.
async fn until_leads(registry: &SharedRegistry, leads: bool) {
    let line = "leader_election_master_status{name=\"lockstep-manager\"} 1";
    while scrape(registry).contains(line) != leads {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
#[expect(
    clippy::disallowed_methods,
    reason = "the paused time of the test is what is measured"
)]
async fn events_during_a_pause_are_handled_as_soon_as_the_lease_is_renewed() {
    let api = two_nodes();
    let (answers, answered) = watch::channel(true);
    let stop = CancellationToken::new();
    let mut deps = deps(&api, "a", &stop);
    // No resync.
    deps.config = Config::default();
    deps.transports.lease = switchable(&api, &answered);
    let registry = deps.registry.clone();
    let manager = run(deps);
    let story = async {
        within(api.until(LEASES, |l| holder(l) == Some("a"))).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        answers.send_replace(false);
        until_leads(&registry, false).await;
        let written = work_writes(&api);
        api.put(WORKLOADS, workload("llama"));
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert_eq!(work_writes(&api), written);
        let metrics = scrape(&registry);
        answers.send_replace(true);
        until_leads(&registry, true).await;
        let renewed = tokio::time::Instant::now();
        within(api.until(PODS, |pods| pods.len() == 2)).await;
        let took = renewed.elapsed();
        assert!(took <= Duration::from_secs(3), "after {took:?}");
        // Writes are not attempted without leadership.
        let failed =
            "controller_runtime_reconcile_total{controller=\"trainingworkload\",result=\"error\"}";
        let failed: Vec<&str> = metrics.lines().filter(|l| l.starts_with(failed)).collect();
        assert!(
            failed
                .iter()
                .all(|l| l.ends_with(" 0") || l.ends_with(" 1")),
            "{failed:?}"
        );
    };
    tokio::select! {
        ended = manager => panic!("{ended:?}"),
        () = story => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_whose_lease_is_taken_while_it_pauses_ends_and_writes_nothing_more() {
    let api = two_nodes();
    let (answers, answered) = watch::channel(true);
    let stop = CancellationToken::new();
    let mut deps = deps(&api, "a", &stop);
    deps.transports.lease = switchable(&api, &answered);
    let registry = deps.registry.clone();
    let mut manager = Box::pin(run(deps));
    let story = async {
        within(api.until(LEASES, |l| holder(l) == Some("a"))).await;
        answers.send_replace(false);
        until_leads(&registry, false).await;
        api.put(WORKLOADS, workload("llama"));
        let taken = json!({"spec": {"holderIdentity": "b", "leaseTransitions": 1}});
        api.merge(LEASES, "lockstep-leader", &taken);
        tokio::time::sleep(Duration::from_secs(20)).await;
        answers.send_replace(true);
    };
    tokio::select! {
        ended = &mut manager => panic!("{ended:?}"),
        () = story => {}
    }
    let ended = within(manager).await;
    assert!(matches!(ended, Err(RunError::Lease(_))), "{ended:?}");
    assert_eq!(work_writes(&api), Vec::<String>::new());
    assert_eq!(holder(&api.all(LEASES)), Some("b"));
}

/// `kubectl delete lease`: the holder notices it when it renews.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::disallowed_methods,
    reason = "the paused time of the test is what is measured"
)]
async fn the_holder_of_a_lease_that_is_deleted_ends_long_before_another_takes_it() {
    let api = FakeApi::new();
    let stop = CancellationToken::new();
    let both = [deps(&api, "a", &stop), deps(&api, "b", &stop)];
    let [mut first, mut second] = both.map(|deps| Box::pin(run(deps)));
    let story = async {
        within(api.until(LEASES, |l| holder(l) == Some("a"))).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        api.delete(LEASES, "lockstep-leader");
        tokio::time::Instant::now()
    };
    let deleted = tokio::select! {
        biased;
        ended = &mut first => panic!("{ended:?}"),
        ended = &mut second => panic!("{ended:?}"),
        deleted = story => deleted,
    };
    let ended = tokio::select! {
        biased;
        ended = &mut second => panic!("{ended:?}"),
        ended = within(&mut first) => ended,
    };
    assert!(matches!(ended, Err(RunError::Lease(_))), "{ended:?}");
    // One attempt that finds no lease, and one read to confirm. The renew deadline is 10 s.
    let ends = deleted.elapsed();
    assert!(ends <= Duration::from_secs(5), "after {ends:?}");
    assert_eq!(api.all(LEASES), Vec::<Value>::new());
    tokio::select! {
        biased;
        ended = &mut second => panic!("{ended:?}"),
        () = within(api.until(LEASES, |l| holder(l) == Some("b"))) => {}
    }
    let taken = deleted.elapsed();
    assert!(taken >= Duration::from_secs(15), "after {taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_status_write_with_a_lost_answer_emits_its_event_once() {
    const EVENTS: &str = "apis/events.k8s.io/v1/events";
    let api = two_nodes();
    api.put(WORKLOADS, workload("llama"));
    api.lose_answer("trainingworkloads/llama/status");
    let stop = CancellationToken::new();
    let mut manager = Box::pin(run(deps(&api, "a", &stop)));
    let story = async {
        within(api.until(WORKLOADS, |w| w[0]["status"]["phase"] == "Starting")).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let queued = |e: &&Value| e["reason"] == "Queued";
        assert_eq!(api.all(EVENTS).iter().filter(queued).count(), 1);
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(&mut manager, story);
    ended.expect("the manager ends as it is told to");
}

#[tokio::test(start_paused = true)]
async fn single_workloads_are_shown_by_the_leader_alone_and_where_that_is_configured() {
    let api = two_nodes();
    api.put(WORKLOADS, workload("llama"));
    let stop = CancellationToken::new();
    let mut both = [deps(&api, "a", &stop), deps(&api, "b", &stop)];
    for deps in &mut both {
        deps.config.metrics.workloads.enabled = true;
    }
    let registries = [0, 1].map(|at| both[at].workload_registry.clone());
    let elsewhere = FakeApi::new();
    elsewhere.put(WORKLOADS, workload("llama"));
    let silent = deps(&elsewhere, "c", &stop);
    let not_asked = silent.workload_registry.clone();
    let [mut first, mut second] = both.map(|deps| Box::pin(run(deps)));
    let mut third = Box::pin(run(silent));
    tokio::select! {
        biased;
        ended = &mut first => ended.unwrap(),
        ended = &mut second => ended.unwrap(),
        ended = &mut third => ended.unwrap(),
        () = within(api.until(WORKLOADS, |w| w[0]["status"]["phase"] == "Starting")) => {}
    }
    tokio::select! {
        biased;
        ended = &mut first => ended.unwrap(),
        ended = &mut second => ended.unwrap(),
        ended = &mut third => ended.unwrap(),
        () = tokio::time::sleep(Duration::from_secs(10)) => {}
    }
    let [leader, follower] = registries.map(|registry| scrape(&registry));
    let info = r#"lockstep_workload_info{namespace="ml",name="llama",phase="Starting""#;
    assert!(leader.contains(info), "{leader}");
    assert_eq!(undocumented(&leader, PAGE), Vec::<&str>::new());
    assert_eq!(follower, "# EOF\n");
    assert_eq!(scrape(&not_asked), "# EOF\n");
}
