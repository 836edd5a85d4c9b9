//! A real Prometheus scrapes two managers while gangs wait, run, restart, are preempted, fail and
//! complete, and a class changes its value. Its data must agree with the API server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::types;
use lockstep_api::workload::Phase;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::pages;
use lockstep_cluster::prometheus::{self, Hold, Prometheus, Sample};
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Scenario, eventually, scenario};
use lockstep_e2e::{fresh, patient};
use serde_json::{Value, json};
use xtask::metrics::{Metric, Metrics, OF_THE_SCRAPE};
use xtask::query;

/// Accelerators of the four nodes.
const ALL: i64 = 32;
/// Metrics of the manager that the story does not produce: this cluster serves no upstream pod
/// groups.
const NOT_SHOWN: [&str; 1] = ["lockstep_native_scheduling"];

/// Labels and name of a series.
type Series = BTreeMap<String, String>;

/// Labels that can be empty: without class, without status.
const EMPTY: [&str; 2] = ["priority_class", "reason"];

fn of_class(name: &str, class: &str, spec: Value) -> Value {
    let mut spec_of_class = json!({"priorityClassName": class});
    merge(&mut spec_of_class, spec);
    gang(name, 2, 8, spec_of_class)
}

/// Plays a story for the dashboards. At the end, `kept` runs after a restart, `vip` runs, its
/// victims wait, one workload each is suspended, stalled, complete and failed, and the class of
/// `vip` has another value.
async fn play(t: &Scenario<'_>) -> Result<()> {
    t.create(of_class("done", "low", json!({}))).await?;
    for pod in t.running("done").await? {
        t.exit(&pod, 0).await?;
    }
    t.condition("done", types::COMPLETE).await?;
    let rule = json!({"failurePolicy": {"rules": [{"name": "any", "match": {}, "action": "FailWorkload"}]}});
    t.create(of_class("broken", "low", rule)).await?;
    t.exit(&t.running("broken").await?[0], 3).await?;
    t.condition("broken", types::FAILED).await?;
    t.none_runs("broken").await?;

    let limits = json!({"failurePolicy": {"limits": {"maxRestarts": 2}}});
    t.create(of_class("kept", "middle", limits)).await?;
    let kept = t.running("kept").await?;
    t.create(of_class("displaced", "low", json!({}))).await?;
    t.running("displaced").await?;
    t.exit(&kept[1], 1).await?;
    t.restarted("kept", 1).await?;
    t.running("kept").await?;
    t.create(of_class("vip", "high", json!({}))).await?;
    t.running("vip").await?;
    t.workload("displaced", "to wait again", |w| {
        let phase = w.status.as_ref().and_then(|s| s.phase);
        ensure!(phase == Some(Phase::Pending), "{phase:?}");
        Ok(())
    })
    .await?;
    t.create(of_class("later", "low", json!({"suspend": true})))
        .await?;
    t.condition("later", types::SUSPENDED).await?;
    t.create(of_class("typo", "hihg", json!({}))).await?;
    t.condition("typo", types::STALLED).await?;
    made_anew(t, "high", "vip").await
}

/// Replaces a class with another value, and then the pod of a member.
async fn made_anew(t: &Scenario<'_>, class: &str, gang: &str) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(t.client.clone());
    let mut changed = classes.get(class).await?;
    classes.delete(class, &DeleteParams::default()).await?;
    changed.value = changed.value.map(|value| value + 1);
    changed.metadata = ObjectMeta {
        name: Some(class.into()),
        ..ObjectMeta::default()
    };
    classes.create(&PostParams::default(), &changed).await?;
    let pods = t.running(gang).await?;
    t.all_pods()
        .delete(&pods[0].name_any(), &DeleteParams::default())
        .await?;
    t.restarted(gang, 1).await?;
    t.condition(gang, types::PODS_NOT_MATCHING_PRIORITY).await?;
    t.running(gang).await.map(drop)
}

async fn workloads(t: &Scenario<'_>) -> Result<Vec<TrainingWorkload>> {
    let all: Api<TrainingWorkload> = Api::all(t.client.clone());
    Ok(all.list(&ListParams::default()).await?.items)
}

/// Values by labels, in the order of `names`.
fn by(samples: Vec<Sample>, names: &[&str]) -> BTreeMap<Vec<String>, i64> {
    let key = |labels: &Series| {
        let of = |name: &&str| labels.get(*name).cloned().unwrap_or_default();
        names.iter().map(of).collect()
    };
    let counts = samples.into_iter().map(|(l, n)| (key(&l), n as i64));
    counts.filter(|(_, n)| *n != 0).collect()
}

/// True if the samples are exactly these numbers.
fn are(samples: Vec<Sample>, names: &[&str], expected: &BTreeMap<Vec<String>, i64>) -> Result<()> {
    let shown = by(samples, names);
    ensure!(shown == *expected, "{shown:?} instead of {expected:?}");
    Ok(())
}

#[test]
fn workloads_that_both_managers_count_are_noticed_in_the_sums() -> Result<()> {
    let phase = |phase: &str, n| (BTreeMap::from([("phase".to_owned(), phase.to_owned())]), n);
    let is = BTreeMap::from([
        (vec!["Pending".to_owned()], 1),
        (vec!["Running".to_owned()], 2),
    ]);
    let right = [phase("Pending", 1.0), phase("Running", 2.0)];
    // A phase without workloads can have a series.
    let empty = [&right[..], &[phase("Failed", 0.0)]].concat();
    are(empty, &["phase"], &is)?;
    for wrong in [
        vec![phase("Pending", 2.0), phase("Running", 4.0)],
        vec![phase("Pending", 1.0), phase("Running", 4.0)],
        vec![phase("Running", 2.0)],
        [&right[..], &[phase("Failed", 1.0)]].concat(),
    ] {
        let refused = are(wrong.clone(), &["phase"], &is).is_err();
        ensure!(refused, "{wrong:?}");
    }
    Ok(())
}

/// Checks that sums over both managers equal the objects of the API server.
async fn sums_are_right(t: &Scenario<'_>, prometheus: &Prometheus) -> Result<()> {
    let objects = workloads(t).await?;
    let mut phases = BTreeMap::new();
    let mut conditions = BTreeMap::new();
    let mut held = 0;
    for status in objects.iter().filter_map(|w| w.status.as_ref()) {
        let phase = status.phase.context("a phase")?.as_str().to_owned();
        *phases.entry(vec![phase]).or_default() += 1;
        held += status.accounting.accelerators;
        for c in &status.conditions {
            let key = vec![c.type_.clone(), c.status.as_str().into(), c.reason.clone()];
            *conditions.entry(key).or_default() += 1;
        }
    }
    let shown = prometheus
        .query("sum by (phase) (lockstep_workloads)")
        .await?;
    are(shown, &["phase"], &phases)?;
    let names = ["condition", "status", "reason"];
    let query = "sum by (condition, status, reason) (lockstep_workload_conditions)";
    are(prometheus.query(query).await?, &names, &conditions)?;
    for (query, expected) in [
        ("sum(lockstep_workloads)", objects.len() as i64),
        // `kept` and `vip`, because completed workloads have no state.
        (r#"sum(lockstep_gangs{state="placed"})"#, 2),
        ("sum(leader_election_master_status)", 1),
        ("count(lockstep_build_info)", 2),
        ("sum(lockstep_accelerators)", ALL),
        // Also while victims end for a gang whose pods already exist.
        ("max_over_time(sum(lockstep_accelerators)[30m:1s])", ALL),
        (r#"sum(lockstep_accelerators{state="held"})"#, ALL),
        (r#"sum(lockstep_accelerators{state="free"})"#, 0),
        ("sum(lockstep_accelerators_held)", held),
        ("sum(lockstep_accelerators_requested)", 16),
        ("sum(lockstep_preemptions_total)", 1),
        // Incidents of `kept` and of `vip`.
        (r#"sum(lockstep_incidents_total{action="RestartGang"})"#, 2),
        (
            r#"sum(lockstep_recovery_seconds_count{action="RestartGang"})"#,
            2,
        ),
        ("sum(lockstep_preemption_seconds_count)", 1),
        (
            r#"sum(lockstep_queue_wait_seconds_count{how="preemption", priority_class="high"})"#,
            1,
        ),
        ("min(lockstep_restart_budget_remaining)", 1),
        (r#"sum(lockstep_agents{state="ready"})"#, 4),
        ("sum(lockstep_nodes_without_agent)", 0),
        ("sum(lockstep_policy_check_failed)", 0),
        ("sum(lockstep_workload_info)", objects.len() as i64),
        ("sum(lockstep_workload_accelerators)", held),
        ("sum(lockstep_workload_restarts)", 2),
        (
            r#"sum(lockstep_workload_status_condition{condition="Ready", status="True"})"#,
            2,
        ),
        ("sum(lockstep_workloads_not_shown)", 0),
    ] {
        let shown = prometheus.number(query).await? as i64;
        ensure!(shown == expected, "{query}: {shown} instead of {expected}");
    }
    Ok(())
}

async fn every_condition_appears(prometheus: &Prometheus) -> Result<()> {
    let query = "max by (condition) (max_over_time(lockstep_workload_conditions[1h]))";
    let missing = never_seen(prometheus.query(query).await?, condition_types()?);
    ensure!(missing.is_empty(), "never seen: {missing:?}");
    Ok(())
}

/// Conditions that no workload had at any time.
fn never_seen(samples: Vec<Sample>, mut expected: BTreeSet<String>) -> BTreeSet<String> {
    for seen in by(samples, &["condition"]).into_keys().flatten() {
        expected.remove(&seen);
    }
    expected
}

#[test]
fn a_condition_that_no_workload_had_is_noticed() -> Result<()> {
    let all = condition_types()?;
    ensure!(all.len() > 8, "{all:?}");
    let had = |n: f64| move |c: &String| (BTreeMap::from([("condition".to_owned(), c.clone())]), n);
    let samples: Vec<Sample> = all.iter().map(had(1.0)).collect();
    ensure!(never_seen(samples.clone(), all.clone()).is_empty());
    let last = all.iter().next_back().context("a condition")?;
    let missing = BTreeSet::from([last.clone()]);
    let without = samples[..samples.len() - 1].to_vec();
    ensure!(never_seen(without.clone(), all.clone()) == missing);
    // A series that was always 0 belongs to no workload.
    let zero = [&without[..], &[had(0.0)(last)]].concat();
    ensure!(never_seen(zero, all.clone()) == missing);
    Ok(())
}

/// Types of conditions of workloads, from the generated page.
fn condition_types() -> Result<BTreeSet<String>> {
    let page = std::fs::read_to_string(repository().join("docs/reference/conditions.md"))?;
    let mut kinds = page.split("\n## ");
    let of_workloads = kinds.find(|kind| kind.starts_with("TrainingWorkload\n"));
    let lines = of_workloads.context("workloads")?.lines();
    let names = lines.filter_map(|l| l.strip_prefix("| `")?.split_once('`'));
    Ok(names.map(|(name, _)| name.to_owned()).collect())
}

/// Checks that the series of the managers and their labels are those of the reference page.
async fn series_are_documented(prometheus: &Prometheus) -> Result<usize> {
    let series = prometheus.series().await?;
    let wrong = not_as_documented(&series, &Metrics::read()?);
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(series.len())
}

/// Series that are not on the page or have other labels, and metrics of the page without series.
fn not_as_documented(series: &[Series], metrics: &Metrics) -> BTreeSet<String> {
    let mut shown = BTreeSet::new();
    let mut wrong = BTreeSet::new();
    for labels in series {
        let name = labels["__name__"].as_str();
        if name == "up" || name.starts_with("scrape_") {
            continue;
        }
        let Some(metric) = metrics.of_series(name) else {
            wrong.insert(format!("{name} is not documented"));
            continue;
        };
        shown.insert(metric.name.as_str());
        let own = |l: &&str| !["__name__", "le"].contains(l) && !OF_THE_SCRAPE.contains(l);
        let has: BTreeSet<&str> = labels.keys().map(String::as_str).filter(own).collect();
        let says: BTreeSet<&str> = metric.labels.iter().map(|(l, _)| l.as_str()).collect();
        // For Prometheus, a label without value does not exist.
        if !has.is_subset(&says) || says.difference(&has).any(|l| !EMPTY.contains(l)) {
            wrong.insert(format!("{name}: {has:?} instead of {says:?}"));
        }
    }
    let missing = of_managers(metrics).filter(|m| !shown.contains(m.name.as_str()));
    wrong.extend(missing.map(|m| format!("{} is never exported", m.name)));
    wrong
}

/// Metrics of the page that managers show in this story.
fn of_managers(metrics: &Metrics) -> impl Iterator<Item = &Metric> {
    let all = metrics.manager.values();
    all.filter(|m| !NOT_SHOWN.contains(&m.name.as_str()))
}

#[test]
fn a_series_that_the_page_does_not_have_and_a_row_without_series_are_noticed() -> Result<()> {
    let metrics = Metrics::read()?;
    let series = |metric: &Metric| {
        let name = match metric.kind.as_str() {
            "histogram" => format!("{}_count", metric.name),
            _ => metric.name.clone(),
        };
        let labels = metric
            .labels
            .iter()
            .map(|(l, _)| (l.clone(), "x".to_owned()));
        let all = labels.chain([
            ("__name__".to_owned(), name),
            ("job".to_owned(), "lockstep".to_owned()),
        ]);
        all.collect::<Series>()
    };
    let all: Vec<_> = of_managers(&metrics).map(series).collect();
    assert_eq!(not_as_documented(&all, &metrics), BTreeSet::new());
    let at = all
        .iter()
        .position(|s| s["__name__"] == "lockstep_gangs")
        .unwrap_or_default();
    let said = |spoil: &dyn Fn(&mut Vec<Series>)| {
        let mut spoilt = all.clone();
        spoil(&mut spoilt);
        Vec::from_iter(not_as_documented(&spoilt, &metrics)).join("; ")
    };
    let insert = |key: &'static str, value: &'static str| {
        move |s: &mut Vec<Series>| drop(s[at].insert(key.into(), value.into()))
    };
    assert_eq!(
        said(&insert("__name__", "lockstep_moods")),
        "lockstep_gangs is never exported; lockstep_moods is not documented"
    );
    assert_eq!(
        said(&insert("queue", "x")),
        r#"lockstep_gangs: {"queue", "state"} instead of {"state"}"#
    );
    assert_eq!(
        said(&|s| drop(s[at].remove("state"))),
        r#"lockstep_gangs: {} instead of {"state"}"#
    );
    assert_eq!(
        said(&|s| drop(s.remove(at))),
        "lockstep_gangs is never exported"
    );
    Ok(())
}

/// Checks that all queries of the dashboards and of the rules are answered. Returns their number,
/// and the queries without data that should have data in this story.
async fn queries_are_answered(prometheus: &Prometheus) -> Result<(usize, Vec<String>)> {
    let root = repository();
    let mut queries = Vec::new();
    for (name, dashboard) in query::dashboards(&root)? {
        let fed = pages::SHOWN.contains(&&*name);
        let of_panels = query::panel_queries(&dashboard).into_iter();
        queries.extend(of_panels.map(|(_, query)| (query, fed)));
    }
    for rule in query::rules(&root)? {
        let expr = rule["expr"].as_str().context("an expression")?;
        queries.push((expr.to_owned(), rule["alert"].is_null()));
    }
    let mut sent = 0;
    let mut empty = Vec::new();
    for (query, feeds) in queries {
        let mut query = query.replace("$__rate_interval", "5m");
        for variable in ["namespace", "workload", "cluster", "job", "instance"] {
            query = query.replace(&format!("${variable}"), ".*");
        }
        let samples = prometheus.query(&query).await?;
        sent += 1;
        empty.extend(unanswered(query, feeds, &samples));
    }
    Ok((sent, empty))
}

/// The query, if it has no data although it should have data in this story.
fn unanswered(query: String, feeds: bool, samples: &[Sample]) -> Option<String> {
    Some(query).filter(|_| feeds && samples.is_empty())
}

#[test]
fn a_query_without_data_is_noticed_where_the_story_feeds_it() {
    let some = [(BTreeMap::new(), 0.0)];
    let said = |feeds, samples: &[Sample]| unanswered("up".to_owned(), feeds, samples);
    assert_eq!(said(true, &[]).as_deref(), Some("up"));
    assert_eq!(said(true, &some), None);
    assert_eq!(said(false, &[]), None);
}

/// Checks that exactly these alerts fire, with complete texts.
async fn fire(prometheus: &Prometheus, expected: &[&str]) -> Result<()> {
    fires(&prometheus.firing().await?, expected)
}

fn fires(firing: &BTreeMap<String, Value>, expected: &[&str]) -> Result<()> {
    let names: BTreeSet<&str> = firing.keys().map(String::as_str).collect();
    ensure!(
        names == expected.iter().copied().collect(),
        "{names:?} fire"
    );
    for (name, words) in firing {
        let text = words.to_string();
        let filled = !text.contains("no value") && !text.contains("error") && !text.contains("{{");
        ensure!(filled, "{name}: {text}");
    }
    Ok(())
}

#[test]
fn an_alert_too_many_or_too_few_and_words_that_are_not_filled_in_are_noticed() -> Result<()> {
    let firing = |alerts: &[(&str, &str)]| -> BTreeMap<String, Value> {
        let words = |text: &str| json!({"summary": "s", "description": text});
        let alerts = alerts
            .iter()
            .map(|(name, text)| ((*name).to_owned(), words(text)));
        alerts.collect()
    };
    fires(&firing(&[("A", "3 in ml"), ("B", "b")]), &["A", "B"])?;
    for (is, expected) in [
        (firing(&[("A", "a")]), &["A", "B"][..]),
        (firing(&[("A", "a"), ("B", "b")]), &["A"]),
        (firing(&[("A", "<no value> in ml")]), &["A"]),
        (firing(&[("A", "{{ $labels.x }}")]), &["A"]),
        (firing(&[("A", "<error expanding template>")]), &["A"]),
    ] {
        ensure!(fires(&is, expected).is_err(), "{is:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_knows_of_two_managers_what_the_api_server_has() -> Result<()> {
    let mut config = patient();
    config["metrics"] = json!({"workloads": {"enabled": true}});
    let cluster = fresh("prometheus", config).await?;
    if !cluster.has_nodes("prometheus") {
        return Ok(());
    }
    let managers = [
        cluster.start_manager("a").await?,
        cluster.start_manager("b").await?,
    ];
    let targets: Vec<&str> = managers.iter().map(|m| m.metrics.as_str()).collect();
    let prometheus = Prometheus::start(
        &prometheus::built().await?,
        &cluster,
        &targets,
        Hold::Seconds,
    )
    .await?;
    scenario(&cluster, "observed", &Shape::default(), async |t| {
        play(t).await?;
        eventually("sums to be right", PATIENCE, async || {
            sums_are_right(t, &prometheus).await
        })
        .await?;
        every_condition_appears(&prometheus).await?;
        let series = series_are_documented(&prometheus).await?;
        let (sent, empty) = queries_are_answered(&prometheus).await?;
        ensure!(empty.is_empty(), "no data: {empty:#?}");
        println!("{series} series of two managers; {sent} queries sent, none in error, none empty that is fed");
        let expected = ["LockstepRestartBudgetLow", "LockstepWorkloadStalled"];
        eventually("the alerts to fire", PATIENCE, async || {
            fire(&prometheus, &expected).await
        })
        .await?;
        t.workloads()
            .delete("typo", &DeleteParams::default())
            .await?;
        eventually("the alert to end", PATIENCE, async || {
            fire(&prometheus, &expected[..1]).await
        })
        .await
    })
    .await
}
