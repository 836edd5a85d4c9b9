use super::*;
use crate::pods::pod::Stage;
use crate::test_support::{mk_node, mk_pod, silent};
use proptest::prelude::*;

/// A node with this label.
fn labelled(name: &str, key: &str) -> Node {
    let mut node = mk_node(name, 8);
    node.labels.insert(key.into(), "x".into());
    node
}

#[test]
fn a_snapshot_stays_as_it_was_while_the_model_moves_on() {
    let mut model = ClusterModel::default();
    model.upsert_node(mk_node("n1", 8));
    let before = model.snapshot();
    model.upsert_pod(mk_pod("p", "n1", 3));
    let gpus = |s: &Snapshot| {
        s.free_capacity()
            .free(s.ordinal("n1").unwrap())
            .last()
            .copied()
    };
    assert_eq!((gpus(&before), gpus(&model.snapshot())), (Some(8), Some(5)));
}

#[test]
fn a_resource_never_seen_before_becomes_a_dimension_and_nothing_is_lost() {
    let mut model = ClusterModel::default();
    model.upsert_pod(mk_pod("p", "n1", 3));
    model.upsert_node(mk_node("n1", 8));
    let s = model.snapshot();
    assert_eq!(
        s.free_capacity().free(s.ordinal("n1").unwrap()).last(),
        Some(&5)
    );
}

#[test]
fn pods_of_one_family_hold_their_labels_and_requests_once() {
    let mut model = ClusterModel::default();
    for uid in ["a", "b"] {
        let labels = Arc::new([("app".to_owned(), "web".to_owned())].into());
        model.upsert_pod(Pod {
            labels,
            ..mk_pod(uid, "n1", 1)
        });
    }
    let s = model.snapshot();
    let pods: Vec<_> = s.pods_on(0).collect();
    assert!(
        Arc::ptr_eq(&pods[0].labels, &pods[1].labels)
            && Arc::ptr_eq(&pods[0].requests, &pods[1].requests)
    );
}

#[test]
fn a_pod_that_comes_or_goes_stands_in_the_row_of_all_pods_and_in_no_earlier_one() {
    let mut model = ClusterModel::default();
    let names: Vec<String> = (0..200).map(|n| format!("n{n:03}")).collect();
    for name in &names {
        model.upsert_node(mk_node(name, 8));
        model.upsert_pod(mk_pod(&format!("on-{name}"), name, 1));
    }
    let row = |s: &Snapshot| -> Vec<(String, String)> {
        let name = |l: &ListedPod| {
            (
                s.node_name(l.node).unwrap().to_string(),
                l.pod.uid.to_string(),
            )
        };
        s.listed_pods().map(name).collect()
    };
    let first = model.snapshot();
    let before = row(&first);
    assert_eq!(before.len(), 200);
    model.upsert_pod(mk_pod("new", "n150", 1));
    model.remove_pod("on-n003");
    // A new topology key renumbers the nodes.
    model.upsert_node(labelled("a", "rack"));
    model.use_topology_key("rack");
    let now = row(&model.snapshot());
    assert!(now.contains(&("n150".to_owned(), "new".to_owned())));
    assert!(
        now.iter()
            .all(|(node, uid)| uid != "on-n003" && node != "a")
    );
    assert_eq!((now.len(), row(&first)), (200, before));
}

#[test]
fn an_update_without_effect_is_distinguished_from_a_change() {
    let mut model = ClusterModel::default();
    assert!(model.upsert_node(mk_node("n1", 8)) && model.upsert_pod(mk_pod("p", "n1", 3)));
    assert!(!model.upsert_node(mk_node("n1", 8)) && !model.upsert_pod(mk_pod("p", "n1", 3)));
    assert!(model.upsert_node(mk_node("n1", 7)) && model.upsert_pod(mk_pod("p", "n1", 2)));
}

#[test]
fn pods_are_found_by_owner_until_they_are_gone() {
    let mut model = ClusterModel::default();
    let member = Some(lockstep_api::member::Member::new("g", 0, 0));
    model.upsert_pod(Pod {
        owner: Some("w".parse().unwrap()),
        member,
        ..mk_pod("p", "n1", 1)
    });
    assert_eq!(model.snapshot().pods_of("w").len(), 1);
    model.remove_pod("p");
    assert!(model.snapshot().pods_of("w").is_empty());
}

#[test]
fn a_topology_key_takes_space_once_a_node_has_the_label() {
    let mut model = ClusterModel::default();
    model.upsert_node(mk_node("n1", 8));
    let count = |model: &ClusterModel| model.snapshot().dims().keys().len();
    let before = count(&model);
    let keys: Vec<String> = (0..1_000).map(|n| format!("example.com/{n}")).collect();
    for key in &keys {
        model.use_topology_key(key);
    }
    assert_eq!(count(&model), before);
    model.upsert_node(labelled("n2", &keys[7]));
    let now = model.snapshot();
    assert_eq!(now.dims().keys().len(), before + 1);
    let domain = |node: &str, key: &str| {
        let node = now.ordinal(node).unwrap();
        now.free_capacity().domain(node, now.dims().key(key))
    };
    let of_seven = |node| domain(node, &keys[7]);
    assert_eq!((of_seven("n1"), of_seven("n2")), (None, Some(0)));
    assert_eq!(domain("n2", &keys[8]), None);
    model.forget_unused(&BTreeSet::new(), &BTreeSet::new());
    assert_eq!(count(&model), before);
}

#[derive(Clone, Debug)]
enum Event {
    Node(u8, i64, bool),
    NodeGone(u8),
    Pod(u8, u8, i64, bool),
    PodGone(u8),
    Key(u8),
}

#[test]
fn unused_topology_keys_and_slots_are_removed_without_affecting_used_ones() {
    let mut model = ClusterModel::default();
    model.upsert_node(mk_node("n1", 8));
    model.upsert_pod(mk_pod("a", "n1", 3));
    let ports: Vec<String> = (0..20)
        .map(|port| format!("slot:port:{port}:TCP"))
        .collect();
    for key in ["zone", "rack"] {
        model.use_topology_key(key);
    }
    model.use_slots(ports.iter().map(String::as_str));
    assert!(!model.has_slot(&ports[19]), "there are too many");
    model.forget_unused(&["rack"].into(), &[ports[3].as_str()].into());
    assert!(model.has_topology_key("rack") && !model.has_topology_key("zone"));
    assert!(model.has_slot(&ports[3]) && !model.has_slot(&ports[4]));
    model.use_slots([ports[19].as_str()]);
    assert!(model.has_slot(&ports[19]));
    let now = model.snapshot();
    let gpu = now.dims().dim("nvidia.com/gpu").unwrap();
    assert_eq!(now.free_capacity().free(0)[gpu], 5);
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..6u8, 0..9i64, any::<bool>()).prop_map(|(n, g, r)| Event::Node(n, g, r)),
        (0..6u8).prop_map(Event::NodeGone),
        (0..20u8, 0..6u8, 0..4i64, any::<bool>()).prop_map(|(p, n, g, t)| Event::Pod(p, n, g, t)),
        (0..20u8).prop_map(Event::PodGone),
        (0..2u8).prop_map(Event::Key),
    ];
    prop::collection::vec(event, 0..60)
}

proptest! {
    /// After any events, the free capacity is the offer of the remaining nodes minus the remaining
    /// pods.
    #[test]
    fn events_in_any_order_leave_the_room_of_what_is_there(events in events()) {
        let mut model = ClusterModel::default();
        let mut nodes: BTreeMap<String, (i64, bool)> = BTreeMap::new();
        let mut pods: BTreeMap<String, (String, i64)> = BTreeMap::new();
        for event in events {
            match event {
                Event::Node(n, gpus, ready) => {
                    let name = format!("n{n}");
                    let node = labelled(&name, &format!("key{}", gpus % 2));
                    let node = Node { labels: node.labels, ..mk_node(&name, gpus) };
                    model.upsert_node(if ready { node } else { silent(node) });
                    nodes.insert(name, (gpus, ready));
                }
                Event::NodeGone(n) => {
                    model.remove_node(&format!("n{n}"));
                    nodes.remove(&format!("n{n}"));
                }
                Event::Pod(p, n, gpus, terminal) => {
                    let (uid, node) = (format!("p{p}"), format!("n{n}"));
                    let stage = if terminal { Stage::Ended } else { Stage::Open };
                    model.upsert_pod(Pod { stage, ..mk_pod(&uid, &node, gpus) });
                    pods.remove(&uid);
                    if !terminal {
                        pods.insert(uid, (node, gpus));
                    }
                }
                Event::PodGone(p) => {
                    model.remove_pod(&format!("p{p}"));
                    pods.remove(&format!("p{p}"));
                }
                Event::Key(k) => model.use_topology_key(&format!("key{k}")),
            }
        }
        let s = model.snapshot();
        let dim = (0..s.dims().len()).find(|&d| lockstep_engine::Names::resource(s.dims(), d) == "nvidia.com/gpu");
        for (name, (gpus, ready)) in nodes {
            let ix = s.ordinal(&name).unwrap();
            let held: i64 = pods.values().filter(|(n, _)| *n == name).map(|(_, g)| g).sum();
            let free = dim.map_or(0, |d| s.free_capacity().free(ix)[d]);
            prop_assert_eq!((free, s.free_capacity().schedulable(ix)), (if dim.is_some() { gpus - held } else { 0 }, ready));
        }
    }
}
