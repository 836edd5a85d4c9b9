//! Documents of the dashboard's pages.

use std::collections::BTreeSet;

use lockstep_api::workload::BarrierArrivals;
use lockstep_cli::dashboard::pages::{Page, Shown, documents};
use lockstep_cli::dashboard::recorded::recorded;
use lockstep_cli::dashboard::view::{ClusterView, PageReads};
use lockstep_cli::record::record;
use lockstep_model::parse::partial::PartialPod;
use serde_json::{Value, json};

use crate::dashboard_fixture::{PODS, lists, reads, reads_of, time, view};

fn page_of(view: &ClusterView, reads: &PageReads, page: Page) -> Value {
    let shown = Shown {
        page,
        workload: Some(("ml".to_owned(), "llama".to_owned())),
        namespace: None,
    };
    let all = documents(view, reads, &shown, time());
    Value::Object(
        all.into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

fn page(page: Page) -> Value {
    let view = view();
    let reads = reads(&view);
    page_of(&view, &reads, page)
}

#[test]
fn the_bar_counts_every_accelerator_once() {
    let overview = &page(Page::Overview)["overview"];
    let bar = overview["bar"].as_array().unwrap().iter();
    let bar: Vec<(&str, i64)> = bar
        .map(|s| (s["state"].as_str().unwrap(), s["amount"].as_i64().unwrap()))
        .collect();
    let expected = [
        ("running", 128),
        ("starting", 0),
        ("restarting", 32),
        ("leaving", 32),
        ("reserved", 32),
        ("other", 0),
        ("free", 72),
        ("unusable", 24),
    ];
    assert_eq!(bar, expected);
    let sum: i64 = bar.iter().map(|(_, amount)| amount).sum();
    assert_eq!(overview["total"], sum);
}

#[test]
fn what_needs_a_person_has_a_reason_and_a_next_step() {
    let overview = &page(Page::Overview)["overview"];
    let needs = overview["needs"].as_array().unwrap().iter();
    let short = |need: &Value| {
        let text = |key: &str| need[key].as_str().unwrap_or_default().to_owned();
        assert!(
            !text("next").is_empty() && text("command").starts_with("kubectl"),
            "{need}"
        );
        format!("{}{} {}", text("workload"), text("node"), text("reason"))
    };
    let needs: Vec<String> = needs.map(short).collect();
    let expected = [
        "ml/llama RepeatedFailure",
        "ml/tuning VolumeMissing",
        "vision/typo InvalidPriorityClass",
        "n21 NoAgent",
        "n22 NoAgent",
    ];
    assert_eq!(needs, expected);
    assert_eq!(page(Page::Overview)["frame"]["needs"], expected.len());
}

#[test]
fn the_last_day_adds_up_the_incidents_of_the_histories() {
    let day = &page(Page::Overview)["overview"]["day"];
    assert_eq!(day["incidents"], 4);
    assert_eq!(
        day["byCause"],
        json!({"ContainerExit": 2, "Hang": 1, "NodeLost": 1})
    );
    assert_eq!(day["lostAcceleratorSeconds"], 4 * 3240);
    assert_eq!(day["marks"][0]["workload"], "ml/llama");
}

#[test]
fn the_queue_says_who_holds_a_reserved_node() {
    let queue = &page(Page::Queue)["queue"];
    let rows = queue["rows"].as_object().unwrap();
    let large = rows
        .iter()
        .find(|(_, row)| row["workload"] == "large")
        .unwrap();
    assert_eq!(large.1["needs"], "16 x 8 nvidia.com/gpu");
    assert_eq!(
        large.1["startsBy"],
        queue["reservations"][large.0]["startsAt"]
    );
    let nodes = &queue["reservations"][large.0]["nodes"];
    assert_eq!(
        nodes["n25"],
        json!({"holder": "vision/vision", "until": null, "kind": "runs"})
    );
    assert_eq!(
        nodes["n32"],
        json!({"holder": null, "until": null, "kind": "free"})
    );
}

#[test]
fn the_map_shows_each_node_with_its_use_and_state() {
    let map = &page(Page::Map)["map"];
    assert_eq!(
        map["levels"],
        json!(["topology.kubernetes.io/zone", "topology.kubernetes.io/rack"])
    );
    let number = |name: &str| {
        let mut all = map["workloads"].as_object().unwrap().iter();
        let (number, _) = all.find(|(_, w)| w["name"] == name).unwrap();
        number.parse::<usize>().unwrap()
    };
    let node = |name: &str| &map["nodes"][name];
    assert_eq!(node("n04")["use"], json!([[number("ml/llama"), 8, "R"]]));
    assert_eq!(
        (&node("n04")["incidents"], &node("n04")["path"]),
        (&json!(2), &json!(["z1", "r1"]))
    );
    assert_eq!(
        node("n14")["use"],
        json!([[number("research/probe"), 8, "X"]])
    );
    assert_eq!(
        node("n17")["use"],
        json!([[number("research/young"), 8, "V"]])
    );
    assert_eq!(node("n32")["use"], json!([[number("ml/large"), 8, "r"]]));
    let states = ["n36", "n37", "n39"].map(|name| node(name)["state"].as_str().unwrap());
    assert_eq!(states, ["silent", "cordoned", "ready"]);
    assert_eq!(
        (&node("n21")["agent"], &node("n01")["agent"]),
        (&json!("none"), &json!("Supervised"))
    );
}

#[test]
fn the_map_leads_from_victims_to_their_preemptor() {
    let view = view();
    let number =
        |namespace: &str, name: &str| view.number(&(namespace.to_owned(), name.to_owned()));
    let nodes = json!(["n17", "n18", "n19", "n20"]);
    let expected = json!([{"preemptor": number("ml", "urgent"), "nodes": nodes,
        "victims": [{"workload": number("research", "young"), "nodes": nodes}],
        "cost": 4800, "atLeast": 4800, "proven": true, "nextBest": null}]);
    assert_eq!(page(Page::Map)["map"]["preemptions"], expected);
}

#[test]
fn victims_of_other_tenants_are_counted_and_not_named() {
    let preemptions = |namespace: &str| {
        let mut view = view();
        let groups = view.groups.as_mut().unwrap();
        groups.retain(|g| g.metadata.namespace.as_deref() == Some(namespace));
        page_of(&view, &PageReads::default(), Page::Map)["map"]["preemptions"].take()
    };
    assert_eq!(
        preemptions("ml")[0]["victims"],
        json!([{"workload": null, "nodes": []}])
    );
    // The tenant of the victim does not see the preemption of another tenant.
    assert_eq!(preemptions("research"), json!([]));
}

#[test]
fn an_intent_of_another_pod_group_is_no_preemption() {
    let mut view = view();
    for group in view.groups.iter_mut().flatten() {
        let intent = group.status.as_mut().unwrap().preemption.as_mut();
        if let Some(intent) = intent {
            intent.preemptor_uid = "uid-before-a-restore".to_owned();
        }
    }
    let map = &page_of(&view, &PageReads::default(), Page::Map)["map"];
    assert_eq!(map["preemptions"], json!([]));
}

#[test]
fn a_pod_among_the_victims_has_its_node_once_pods_are_read() {
    let mut view = view();
    let pods = lists().remove(PODS).unwrap().into_iter();
    let pods = pods.map(|pod| serde_json::from_value::<PartialPod>(pod).unwrap());
    view.pods = Some(pods.map(|pod| pod.scheduling().unwrap()).collect());
    for group in view.groups.iter_mut().flatten() {
        let intent = group.status.as_mut().unwrap().preemption.iter_mut();
        intent.for_each(|intent| intent.victims[0].uid = "uid-web".to_owned());
    }
    let map = &page_of(&view, &PageReads::default(), Page::Map)["map"];
    assert_eq!(
        map["preemptions"][0]["victims"],
        json!([{"workload": null, "nodes": ["n30"]}])
    );
}

#[test]
fn a_snapshot_has_the_cost_of_the_victims_of_a_preemption() {
    let (file, _) = record(view().objects(None), &BTreeSet::new(), None, time());
    let map = &page_of(&recorded(file), &PageReads::default(), Page::Map)["map"];
    let shown = &map["preemptions"][0];
    assert_eq!(
        (&shown["cost"], &shown["victims"][0]["nodes"][3]),
        (&json!(4800), &json!("n20"))
    );
}

#[test]
fn numbers_of_workloads_stay_when_others_come_and_go() {
    let mut view = view();
    let before = view.number(&("ml".to_owned(), "llama".to_owned()));
    let mut workloads = view.workloads.take().unwrap();
    let mut first = workloads[0].clone();
    first.metadata.name = Some("aaa".to_owned());
    view.note_workload(&first);
    workloads.insert(0, first);
    view.workloads = Some(workloads);
    view.forget_workloads();
    assert_eq!(view.number(&("ml".to_owned(), "llama".to_owned())), before);
    assert_eq!(view.number(&("ml".to_owned(), "aaa".to_owned())), Some(9));
}

#[test]
fn the_page_of_a_workload_joins_members_pods_and_steps() {
    let workload = &page(Page::Workload)["workload"];
    let member = &workload["members"]["workers/0/3"];
    assert_eq!(
        member,
        &json!({"rank": 3, "node": "n04", "pod": "llama-workers-0-3", "phase": "Running", "step": 18_237,
            "behind": 3, "arrived": null, "ready": true})
    );
    assert_eq!(workload["budget"], json!({"used": 2, "limit": 10}));
    assert_eq!(workload["checkpoint"]["ratePerMinute"], 12.1);
    assert_eq!(
        workload["restarts"][0]["phases"],
        json!({"detect": 90, "decide": 35, "stop": 165, "barrier": 28, "start": 0})
    );
    let view = view();
    let shown = Shown {
        page: Page::Workload,
        workload: Some(("ml".to_owned(), "gone".to_owned())),
        namespace: None,
    };
    let none = documents(&view, &PageReads::default(), &shown, time());
    assert_eq!(none[1].1, json!({"notFound": "no workload ml/gone"}));
}

/// `arrivals` of the page of research/probe, whose members restart.
fn arrivals(view: &ClusterView, reads: &PageReads) -> Value {
    let shown = Shown {
        page: Page::Workload,
        workload: Some(("research".to_owned(), "probe".to_owned())),
        namespace: None,
    };
    let all = documents(view, reads, &shown, time());
    let (_, document) = all.iter().find(|(name, _)| *name == "workload").unwrap();
    document["arrivals"].clone()
}

/// The member of probe on this node is at the barrier.
fn arrive(view: &mut ClusterView, node: &str, pod: &str) {
    let mut agents = view.agents.iter_mut().flatten();
    let agent = agents.find(|a| a.metadata.name.as_deref() == Some(node));
    let status = agent.unwrap().status.as_mut().unwrap();
    let arrival = json!({"workloadUID": "uid-probe", "domain": "workload", "attempt": 2,
        "pods": [{"podUID": pod, "containerID": "c", "restarts": 0}]});
    status
        .arrivals
        .push(serde_json::from_value(arrival).unwrap());
}

/// The view while three of four members of probe wait at the barrier.
fn waiting() -> (ClusterView, PageReads) {
    let mut view = view();
    for (node, index) in [("n13", 0), ("n14", 1), ("n16", 3)] {
        arrive(&mut view, node, &format!("uid-probe-workers-0-{index}"));
    }
    let reads = reads_of(&view, "probe");
    (view, reads)
}

#[test]
fn agents_show_who_is_at_the_barrier_before_the_status_does() {
    let (view, reads) = waiting();
    let expected = json!({"arrived": 3, "expected": 4, "late": ["workers/0/2"]});
    assert_eq!(arrivals(&view, &reads), expected);
    assert_eq!(page(Page::Workload)["workload"]["arrivals"], Value::Null);
}

#[test]
fn a_reader_without_node_agents_gets_the_arrivals_of_the_status() {
    let (mut view, reads) = waiting();
    view.agents = None;
    assert_eq!(arrivals(&view, &reads), Value::Null, "the first 5 s");
    let workloads = view.workloads.iter_mut().flatten();
    for status in workloads.filter_map(|w| w.status.as_mut()) {
        for incident in status
            .domains
            .iter_mut()
            .filter_map(|d| d.incident.as_mut())
        {
            incident.arrivals = Some(BarrierArrivals {
                arrived: 2,
                expected: 4,
                late: ["workers/0/1", "workers/0/2"].map(str::to_owned).into(),
                arrivals_time: time(),
            });
        }
    }
    let expected = json!({"arrived": 2, "expected": 4, "late": ["workers/0/1", "workers/0/2"]});
    assert_eq!(arrivals(&view, &reads), expected);
}

#[test]
fn incidents_are_keyed_and_can_be_limited_to_a_namespace() {
    let shown = Shown {
        page: Page::Incidents,
        workload: None,
        namespace: Some("vision".to_owned()),
    };
    let all = documents(&view(), &PageReads::default(), &shown, time());
    let rows = all[1].1["rows"].as_object().unwrap();
    assert_eq!(rows.len(), 1);
    let (key, row) = rows.iter().next().unwrap();
    assert!(key.starts_with("vision/vision/workload/1/"), "{key}");
    assert_eq!(
        (&row["node"], &row["totalMs"], &row["phases"]["stop"]),
        (&json!("n30"), &json!(2000), &json!(165))
    );
}

#[test]
fn without_a_workload_its_page_lists_those_of_the_namespace() {
    let view = view();
    let shown = Shown {
        page: Page::Workload,
        workload: None,
        namespace: Some("vision".to_owned()),
    };
    let all = documents(&view, &reads(&view), &shown, time());
    let (_, document) = all.iter().find(|(name, _)| *name == "workload").unwrap();
    let list = document["list"].as_object().unwrap();
    let short = |name: &str| {
        let row = &list[name];
        json!([row["phase"], row["accelerators"], row["priority"]])
    };
    assert_eq!(list.len(), 2);
    assert_eq!(short("vision/vision"), json!(["Running", 64, 5]));
    assert_eq!(short("vision/typo"), json!(["Stalled", 0, 0]));
}
