//! Content of snapshots, written and read.

use lockstep_cli::file::{pack, unpack};
use lockstep_cli::whatif::what_if;
use lockstep_model::SnapshotFile;
use serde_json::json;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, RandomState};

use crate::support::{full_cluster, manifest, rules, snapshot, workload};

#[test]
fn a_snapshot_survives_its_file() {
    let file = snapshot(full_cluster());
    assert_eq!(
        (file.nodes.len(), file.pods.len(), file.gangs.len()),
        (4, 4, 2)
    );
    assert_eq!(unpack(&pack(&file).unwrap()).unwrap(), file);
}

#[test]
fn a_snapshot_omits_container_commands_and_unused_labels() {
    let json = String::from_utf8(snapshot(full_cluster()).to_json().unwrap()).unwrap();
    for absent in [
        "hunter2",
        "secret.example.com",
        "TOKEN",
        "image",
        "env",
        "team",
        "shop",
    ] {
        assert!(!json.contains(absent), "{absent} in {json}");
    }
    assert!(json.contains("\"app\":\"web\""));
}

#[test]
fn a_snapshot_with_hashed_names_has_none_of_the_names() {
    let file = snapshot(full_cluster()).pseudonymized(&RandomState::new());
    let json = String::from_utf8(file.to_json().unwrap()).unwrap();
    for absent in [
        "\"ml\"", "old", "young", "web", "exporter", "\"n1", "workers", "uid-old",
    ] {
        assert!(!json.contains(absent), "{absent} in {json}");
    }
    assert_eq!(unpack(&pack(&file).unwrap()).unwrap(), file);
}

#[test]
fn hashed_names_change_with_the_salt_and_not_within_one_file() {
    let file = snapshot(full_cluster());
    let salt = BuildHasherDefault::<DefaultHasher>::default();
    let (once, again) = (file.pseudonymized(&salt), file.pseudonymized(&salt));
    assert_eq!(once, again);
    let node = once
        .pods
        .iter()
        .filter_map(|p| p.bound.as_ref())
        .find(|n| **n == once.nodes[0].name);
    assert_eq!(node, Some(&once.nodes[0].name));
    assert_eq!(
        once.nodes[0].labels.get("kubernetes.io/hostname"),
        Some(&once.nodes[0].name)
    );
    let other = RandomState::new();
    assert_ne!(salt.hash_one("n1"), other.hash_one("n1"));
    assert_ne!(file.pseudonymized(&other), once);
}

#[test]
fn a_snapshot_with_hashed_names_gives_the_same_answer_up_to_names() {
    let file = snapshot(full_cluster());
    let hashed = file.pseudonymized(&RandomState::new());
    for (members, scheduling) in [
        (1, json!({})),
        (2, json!({})),
        (3, json!({})),
        (2, json!({"topology": {"key": crate::support::RACK}})),
    ] {
        let asked = workload(manifest("new", members, 8, &scheduling));
        let (plain, mut other) = (
            what_if(&file, &asked, &rules()).unwrap(),
            what_if(&hashed, &asked, &rules()).unwrap(),
        );
        let name = |from: &str, pairs: Vec<(&str, &str)>| {
            pairs.iter().find(|p| p.0 == from).unwrap().1.to_owned()
        };
        let nodes: Vec<_> = hashed
            .nodes
            .iter()
            .zip(&file.nodes)
            .map(|(h, n)| (h.name.as_str(), n.name.as_str()))
            .collect();
        let pods = hashed
            .pods
            .iter()
            .zip(&file.pods)
            .map(|(h, n)| (h.uid.as_str(), n.uid.as_str(), n.name.as_str()));
        let gangs = hashed
            .gangs
            .iter()
            .zip(&file.gangs)
            .map(|(h, n)| (h.uid.as_str(), n.uid.as_str(), n.name.as_str()));
        let units: Vec<_> = pods.chain(gangs).collect();
        for gang in &mut other.gangs {
            let of_next = gang.next_best.iter_mut().flat_map(|n| &mut n.victims);
            for victim in gang.victims.iter_mut().chain(of_next) {
                let unit = units.iter().find(|u| u.0 == victim.uid).unwrap();
                (victim.uid, victim.name, victim.namespace) =
                    (unit.1.to_owned(), unit.2.to_owned(), "ml".to_owned());
                victim
                    .nodes
                    .iter_mut()
                    .for_each(|n| *n = name(n, nodes.clone()));
            }
            gang.nodes
                .iter_mut()
                .for_each(|on| on.node = name(&on.node, nodes.clone()));
        }
        assert_eq!(other, plain);
    }
}

#[test]
fn a_value_that_means_nothing_is_refused_with_its_path() {
    let mut file = snapshot(full_cluster());
    file.pods[1].member = Some("workers/0/0-7".to_owned());
    let refusal = |file: &SnapshotFile| unpack(&pack(file).unwrap()).unwrap_err().to_string();
    assert_eq!(
        refusal(&file),
        "pods[1].member: \"workers/0/0-7\" is not a member range of one"
    );
    file.pods[1].member = None;
    let name = std::mem::take(&mut file.nodes[2].name);
    assert_eq!(refusal(&file), "nodes[2].name: \"\" is not a name");
    file.nodes[2].name = name;
    file.gangs[0].templates[0].eligible = vec![(0, 4)];
    assert_eq!(
        refusal(&file),
        "gangs[0].templates: \"0-4\" is not a range of positions of nodes"
    );
    file.gangs[0].domains[0].members = vec!["workers".to_owned()];
    assert_eq!(
        refusal(&file),
        "gangs[0]: \"workers\" is not a member range"
    );
}
