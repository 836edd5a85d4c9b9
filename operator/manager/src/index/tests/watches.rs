//! Lists and events of the watches, and the wake-ups of workloads.

use lockstep_api::NodeHealthMode;
use lockstep_api::node_signal::{BUILT_IN, SignalMatch};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_service_of_another_workload_wakes_the_one_that_needs_its_name_when_it_goes() {
    let f = Fixture::new();
    let mut named = workload("named");
    named["spec"]["network"] = json!({"subdomain": "ring"});
    for workload in [workload("llama"), named, workload("other")] {
        f.see::<Workloads>(&workload);
    }
    for (name, waits) in [("llama", "llama"), ("ring", "named")] {
        // Left by a deleted workload of this name.
        let left = service(name, "before");
        f.see::<Services>(&left);
        f.dirty().await;
        Feed::<Services>::default().handle(&f.index, Event::Delete(received(&left)));
        assert_eq!(f.dirty().await, [waits]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_from_a_new_list_is_gone() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    f.see::<Pods>(&member("b", "llama", "n1"));
    f.dirty().await;
    let mut feed = Feed::<Pods>::default();
    feed.handle(&f.index, Event::Init);
    feed.handle(
        &f.index,
        Event::InitApply(received(&member("b", "llama", "n1"))),
    );
    feed.handle(&f.index, Event::InitDone);
    let names: Vec<String> = f
        .index
        .read()
        .members_of("ml", "uid-llama")
        .map(|p| p.name.clone())
        .collect();
    assert_eq!(
        (names, f.dirty().await),
        (vec!["b".to_owned()], vec!["llama".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_aborted_list_are_removed_after_the_next_list() {
    let f = Fixture::new();
    let mut feed = Feed::<Pods>::default();
    feed.handle(&f.index, Event::Init);
    let pod = member("a", "llama", "n1");
    feed.handle(&f.index, Event::InitApply(received(&pod)));
    feed.handle(&f.index, Event::Init);
    assert_eq!(f.index.read().pods.len(), 1);
    feed.handle(&f.index, Event::InitDone);
    assert_eq!(f.index.read().pods.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_noted_while_lists_have_it_and_no_longer() {
    let f = Fixture::new();
    let bad = json!({"metadata": {"name": "bad", "namespace": "ml"}});
    let noted = || f.index.read().unreadable.len();
    let mut feed = Feed::<Pods>::default();
    for listed in [true, true, false] {
        feed.handle(&f.index, Event::Init);
        if listed {
            feed.handle(&f.index, Event::InitApply(received(&bad)));
        }
        feed.handle(&f.index, Event::InitDone);
        assert_eq!(noted(), usize::from(listed));
    }
}

#[tokio::test(start_paused = true)]
async fn one_unreadable_workload_is_left_alone_and_the_next_is_seen() {
    let f = Fixture::new();
    let mut bad = workload("bad");
    bad["spec"]["groups"] = json!("none");
    f.see::<Workloads>(&workload("bad"));
    f.see::<Workloads>(&bad);
    f.see::<Workloads>(&workload("good"));
    let names: Vec<String> = f
        .index
        .read()
        .workloads
        .keys()
        .map(|k| k.name.to_string())
        .collect();
    assert_eq!(names, ["good"]);
    assert_eq!(f.index.read().unreadable.len(), 1);
    f.see::<Workloads>(&workload("bad"));
    assert!(f.index.read().unreadable.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_without_an_identity_is_refused_at_the_border_and_counted() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    let without = |mut object: Value, field: &str| {
        object["metadata"][field] = json!("");
        object
    };
    f.see::<Pods>(&without(member("a", "llama", "n1"), "uid"));
    f.see::<PodGroups>(&without(pod_group("llama", "n1"), "resourceVersion"));
    f.see::<Nodes>(&without(node("n1", "True"), "name"));
    let state = f.index.read();
    assert_eq!(state.members_of("ml", "uid-llama").count(), 0);
    assert!(state.pod_groups.is_empty() && state.nodes.is_empty());
    let kinds: Vec<WatchedKind> = state.unreadable.keys().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [WatchedKind::PodGroup, WatchedKind::Pod, WatchedKind::Node]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_queues_the_workloads_with_pods_or_placements_on_it() {
    let f = Fixture::new();
    for name in ["runs", "placed", "elsewhere"] {
        f.see::<Workloads>(&workload(name));
    }
    f.see::<Pods>(&member("a", "runs", "n1"));
    f.see::<Pods>(&member("b", "elsewhere", "n2"));
    f.see::<PodGroups>(&pod_group("placed", "n1"));
    f.see::<Nodes>(&node("n1", "True"));
    f.dirty().await;
    f.see::<Nodes>(&node("n1", "Unknown"));
    assert_eq!(f.dirty().await, ["placed", "runs"]);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_without_changes_wakes_no_workload() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    f.see::<Nodes>(&node("n1", "True"));
    f.dirty().await;
    f.scheduler_woken().await;
    f.see::<Nodes>(&node("n1", "True"));
    f.see::<Pods>(&member("a", "llama", "n1"));
    assert_eq!(f.dirty().await, Vec::<String>::new());
    assert!(!f.scheduler_woken().await);
}

#[tokio::test(start_paused = true)]
async fn refreshed_conditions_of_5000_nodes_cause_no_cycle_and_wake_no_workload() {
    let f = Fixture::new();
    f.index
        .use_signal_rules(BUILT_IN.to_vec(), NodeHealthMode::Act);
    f.see::<Workloads>(&workload("llama"));
    let refresh = |minute: usize| {
        for number in 0..5000 {
            let name = format!("n{number}");
            let mut node = node(&name, "True");
            let conditions = BUILT_IN.iter().filter_map(|rule| match &rule.matches {
                SignalMatch::Condition(bad) if bad.status == "True" => Some(bad.type_.clone()),
                _ => None,
            });
            for type_ in conditions.take(20) {
                let time = format!("2026-11-21T10:{minute:02}:00Z");
                let healthy = json!({"type": type_, "status": "False", "lastHeartbeatTime": time});
                let all = node["status"]["conditions"].as_array_mut().unwrap();
                all.push(healthy);
            }
            node["metadata"]["resourceVersion"] = json!(minute.to_string());
            f.see::<Nodes>(&node);
        }
    };
    refresh(0);
    for number in 0..100 {
        let (pod, node) = (format!("p{number}"), format!("n{number}"));
        f.see::<Pods>(&member(&pod, "llama", &node));
    }
    f.dirty().await;
    f.scheduler_woken().await;
    refresh(5);
    assert_eq!(f.dirty().await, Vec::<String>::new());
    assert!(!f.scheduler_woken().await);
}

/// Adds an object to the tables like a watch, but loses the wake-ups.
fn see_without_waking<W: Watched>(f: &Fixture, object: &Value) {
    let received: W::Received = received(object);
    let key = Key::of(&received);
    let object = W::read(received).map_err(drop).unwrap();
    let mut lost = Touched::default();
    W::apply(
        &mut f.index.state.write(),
        &f.index.agents,
        key,
        object,
        &mut lost,
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_wake_up_was_lost_is_repaired_by_the_next_periodic_pass() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.dirty().await;
    f.scheduler_woken().await;
    let period = Duration::from_mins(10);
    let mut passes = Box::pin(resync(f.index.clone(), Random::seeded(3), period));
    see_without_waking::<Pods>(&f, &member("a", "llama", "n1"));
    let woken = async {
        let key = f.queue.next().await;
        f.index.scheduler_dirty().await;
        key.name
    };
    let within_two_periods = tokio::time::timeout(period * 2, woken);
    let name = tokio::select! {
        () = &mut passes => unreachable!("it goes on for ever"),
        name = within_two_periods => name,
    };
    assert_eq!(name.as_deref(), Ok("llama"));
}

#[tokio::test(start_paused = true)]
async fn a_period_of_zero_turns_the_periodic_pass_off() {
    let f = Fixture::new();
    f.see::<Workloads>(&workload("llama"));
    f.dirty().await;
    let passes = resync(f.index.clone(), Random::seeded(3), Duration::ZERO);
    let a_day = tokio::time::timeout(Duration::from_hours(24), passes).await;
    assert!(a_day.is_err() && f.dirty().await.is_empty());
}
