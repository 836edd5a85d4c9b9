//! Derived tables are updated with each change, so they always equal the tables of a newly started
//! manager.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::ids::{NodeName, Uid};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::super::state::State;
use super::*;

/// Changes of objects: created or changed, deleted, or relisted in part. Numbers select names and
/// contents.
#[derive(Clone, Copy, Debug)]
enum Change {
    Workload {
        name: usize,
        uid: usize,
        service: usize,
    },
    Pod {
        name: usize,
        workload: usize,
        node: usize,
        pinned: bool,
    },
    PodGroup {
        workload: usize,
        nodes: usize,
        owner: usize,
    },
    AgentPod {
        name: usize,
        node: usize,
        ready: bool,
    },
    Service(usize),
    Node(usize, bool),
    /// Deletes the object with this number, of a kind.
    Gone(usize, usize),
    /// Lists a kind; bits select the listed objects.
    Relist(usize, usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let n = || 0..4usize;
    let change = prop_oneof![
        4 => (n(), 0..2usize, 0..3usize).prop_map(|(name, uid, service)| Change::Workload { name, uid, service }),
        6 => (n(), n(), n(), any::<bool>()).prop_map(|(name, workload, node, pinned)| Change::Pod { name, workload, node, pinned }),
        6 => (n(), 0..16usize, 0..12usize).prop_map(|(workload, nodes, owner)| Change::PodGroup { workload, nodes, owner }),
        2 => (n(), n(), any::<bool>()).prop_map(|(name, node, ready)| Change::AgentPod { name, node, ready }),
        1 => n().prop_map(Change::Service),
        1 => (n(), any::<bool>()).prop_map(|(n, ready)| Change::Node(n, ready)),
        4 => (0..5usize, 0..8usize).prop_map(|(kind, n)| Change::Gone(kind, n)),
        1 => (0..5usize, any::<usize>()).prop_map(|(kind, bits)| Change::Relist(kind, bits)),
    ];
    prop::collection::vec(change, 1..60)
}

/// Existing objects by kind and name.
type Objects = [BTreeMap<String, Value>; 5];

/// Applies a change to objects and index.
fn happen(f: &Fixture, objects: &mut Objects, change: Change) {
    let (kind, object) = match change {
        Change::Workload { name, uid, service } => {
            let mut object = workload(&format!("w{name}"));
            if uid > 0 {
                object["metadata"]["uid"] = json!(format!("uid-w{name}-again"));
            }
            if service > 0 {
                object["spec"]["network"] = json!({"subdomain": format!("s{service}")});
            }
            (0, object)
        }
        Change::Pod {
            name,
            workload,
            node,
            pinned,
        } => {
            let mut object = member(
                &format!("p{name}"),
                &format!("w{workload}"),
                &format!("n{node}"),
            );
            if pinned {
                object["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}]}}});
            }
            (1, object)
        }
        Change::AgentPod { name, node, ready } => {
            let ready = if ready { "True" } else { "False" };
            let name = format!("agent-{name}");
            let object = json!({"metadata": {"name": name, "namespace": "agents", "uid": name, "labels": {"app": "lockstep-agent"}},
                "spec": {"nodeName": format!("n{node}"), "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            (1, object)
        }
        Change::PodGroup {
            workload,
            nodes,
            owner,
        } => {
            let mut object = pod_group(&format!("w{workload}"), "n0");
            let (name, uid) = (format!("w{workload}"), format!("uid-w{workload}"));
            let name = lockstep_api::names::pod_group_name(&name, &uid, "workload");
            object["metadata"]["name"] = json!(name);
            object["metadata"]["ownerReferences"] =
                owned_by(&format!("w{}", if owner < 4 { owner } else { workload }));
            let nodes = (0..4).filter(|n| nodes & 1 << n > 0);
            let placed = nodes
                .map(|n| json!({"node": format!("n{n}"), "members": [format!("workers/{n}/0")]}));
            object["status"]["placement"]["nodes"] = placed.collect();
            (2, object)
        }
        Change::Service(n) => (3, service(&format!("s{n}"), "w0")),
        Change::Node(n, ready) => (
            4,
            node(&format!("n{n}"), if ready { "True" } else { "Unknown" }),
        ),
        Change::Gone(kind, n) => {
            let names: Vec<String> = objects[kind].keys().cloned().collect();
            if let Some(object) = names.get(n).and_then(|name| objects[kind].remove(name)) {
                gone(f, kind, &object);
            }
            return;
        }
        Change::Relist(kind, bits) => {
            let mut at = 0;
            objects[kind].retain(|_, _| {
                at += 1;
                bits >> at & 1 > 0
            });
            relist(f, kind, objects[kind].values());
            return;
        }
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    objects[kind].insert(name.to_owned(), object.clone());
    see(f, kind, &object);
}

fn see(f: &Fixture, kind: usize, object: &Value) {
    match kind {
        0 => f.see::<Workloads>(object),
        1 => f.see::<Pods>(object),
        2 => f.see::<PodGroups>(object),
        3 => f.see::<Services>(object),
        _ => f.see::<Nodes>(object),
    }
}

fn gone(f: &Fixture, kind: usize, object: &Value) {
    fn of<W: Watched>(f: &Fixture, object: &Value) {
        Feed::<W>::default().handle(&f.index, Event::Delete(received(object)));
    }
    match kind {
        0 => of::<Workloads>(f, object),
        1 => of::<Pods>(f, object),
        2 => of::<PodGroups>(f, object),
        3 => of::<Services>(f, object),
        _ => of::<Nodes>(f, object),
    }
}

fn relist<'a>(f: &Fixture, kind: usize, objects: impl Iterator<Item = &'a Value>) {
    fn of<'a, W: Watched>(f: &Fixture, objects: impl Iterator<Item = &'a Value>) {
        let mut feed = Feed::<W>::default();
        feed.handle(&f.index, Event::Init);
        for object in objects {
            feed.handle(&f.index, Event::InitApply(received(object)));
        }
        feed.handle(&f.index, Event::InitDone);
    }
    match kind {
        0 => of::<Workloads>(f, objects),
        1 => of::<Pods>(f, objects),
        2 => of::<PodGroups>(f, objects),
        3 => of::<Services>(f, objects),
        _ => of::<Nodes>(f, objects),
    }
}

/// Workloads affected by a change of a node, found by a full scan.
fn concerned(state: &State, node: &str) -> BTreeSet<Key> {
    let owner = |uid: &str, namespace: &str| {
        let mut all = state.workloads.iter();
        let found = all.find(|(_, w)| w.metadata.uid.as_deref() == Some(uid));
        found
            .map(|(key, _)| key.clone())
            .filter(|key| *key.namespace == *namespace)
    };
    let pods = state.pods.iter().filter_map(|(key, entry)| {
        let (uid, view) = entry.member.as_ref()?;
        let there = view.node.as_deref() == Some(node) || view.pinned.as_deref() == Some(node);
        owner(uid.as_str(), &key.namespace).filter(|_| there)
    });
    let groups = state.pod_groups.iter().filter_map(|(key, group)| {
        let uid = controller_uid(&**group)?;
        let placement = group.status.as_ref()?.placement.as_ref()?;
        let there = placement.nodes.iter().any(|n| n.node == node);
        owner(uid, &key.namespace).filter(|_| there)
    });
    pods.chain(groups).collect()
}

/// The derived tables.
fn tables(state: &State) -> impl PartialEq + std::fmt::Debug + use<> {
    let ready: BTreeMap<NodeName, usize> = state
        .agents_of
        .iter()
        .filter(|(_, pods)| pods.ready > 0)
        .map(|(node, pods)| (node.clone(), pods.ready))
        .collect();
    let keys: BTreeMap<Uid, Key> = state.workload_keys.clone().into_iter().collect();
    (
        keys,
        state.members.clone(),
        state.on_node.clone(),
        state.placed_on.clone(),
        state.in_need_of.clone(),
        ready,
        state.gang_inputs.keys().cloned().collect::<Vec<_>>(),
    )
}

#[test]
fn whatever_has_happened_the_index_is_that_of_a_manager_that_starts_now() {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let mut config = Config {
        cases: cases.and_then(|n| n.parse().ok()).unwrap_or(200),
        failure_persistence: None,
        ..Config::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    let seen = std::cell::Cell::new([0; 4]);
    let runner = TestRunner::new(config).run(&changes(), |changes| {
        let f = Fixture::new();
        let mut objects = Objects::default();
        for change in changes {
            happen(&f, &mut objects, change);
        }
        let again = Fixture::new();
        // Watches deliver their first lists in any order.
        for kind in (0..objects.len()).rev() {
            objects[kind]
                .values()
                .for_each(|object| see(&again, kind, object));
        }
        let (state, fresh) = (f.index.read(), again.index.read());
        prop_assert_eq!(tables(&state), tables(&fresh));
        for name in (0..4).map(|n| format!("n{n}")) {
            let mut touched = Touched::default();
            state.touch_node(&NodeName::read(Some(&name)).unwrap(), &mut touched);
            prop_assert_eq!(touched.workloads, concerned(&state, &name));
        }
        for service in ["w0", "w1", "s1", "s2"] {
            let mut touched = Touched::default();
            state.touch_service(&Key::new("ml", service), &mut touched);
            let in_need = state
                .workloads
                .iter()
                .filter(|(key, w)| w.spec.network.subdomain_of(&key.name) == service);
            prop_assert_eq!(
                touched.workloads,
                in_need.map(|(key, _)| key.clone()).collect()
            );
        }
        let there = [
            state.placed_on.len(),
            state.on_node.len(),
            state.in_need_of.len(),
            state.gang_inputs.len(),
        ];
        let mut all = seen.get();
        all.iter_mut()
            .zip(there)
            .for_each(|(all, more)| *all += more);
        seen.set(all);
        Ok(())
    });
    if let Err(why) = runner {
        panic!("{why}");
    }
    assert!(
        seen.get().iter().all(|n| *n > 50),
        "hardly anything was there: {:?}",
        seen.get()
    );
}
