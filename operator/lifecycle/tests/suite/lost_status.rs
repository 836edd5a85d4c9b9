//! A running workload whose status, or another object of the manager, is lost or has another version.

use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Phase;
use lockstep_sim::solo::gang;
use lockstep_sim::trouble::record_hash;
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

fn in_place_only(n: i32) -> Value {
    let mut spec = gang(n);
    spec["failurePolicy"]["inPlace"] = json!({"withoutSupervisor": "Deny"});
    spec
}

fn lose_status(w: &mut Solo) {
    let key = w.key().clone();
    w.cluster
        .edit::<TrainingWorkload>(&key, |w| w.status = None);
}

fn lose_order(w: &mut Solo) {
    let key = w.key().clone();
    if w.order().is_some() {
        w.delete(WatchedKind::RestartOrder, &key);
    }
}

#[test]
fn a_lost_status_restarts_no_member() {
    for supervised in [true, false] {
        for (restarts, order) in [(0, false), (1, false), (2, false), (1, true)] {
            let mut w = Solo::supervised_if(supervised, gang(4));
            w.settle();
            for _ in 0..restarts {
                w.exit("g", 0, 1);
                w.settle();
            }
            let before = (w.uids(), w.children(), w.restarts(), w.status().attempt);
            lose_status(&mut w);
            if order {
                lose_order(&mut w);
            }
            w.rounds(120);
            let case = format!("supervised {supervised}, {restarts} restarts, order {order}");
            let after = (w.uids(), w.children(), w.restarts(), w.status().attempt);
            assert_eq!(after, before, "{case}: {}", w.story(30));
            assert_eq!(w.status().phase, Some(Phase::Running), "{case}");
            w.exit("g", 1, 1);
            w.settle();
            assert_eq!(w.status().phase, Some(Phase::Running), "{case}");
            assert_eq!(
                (w.uids(), w.status().attempt),
                (before.0, before.3 + 1),
                "{case}"
            );
        }
    }
}

#[test]
fn a_gang_survives_the_loss_of_its_objects_during_a_restart() {
    for seed in 0..12 {
        let mut draw = Solo::with_seed(seed, gang(1));
        let supervised = draw.pick(2) == 0;
        let mut spec = if draw.pick(2) == 0 {
            in_place_only(4)
        } else {
            gang(4)
        };
        if draw.pick(2) == 0 {
            spec["scheduling"] = json!({"gang": {"scope": "Replica"}});
        }
        let mut w = Solo::supervised_if(supervised, spec);
        w.settle();
        for _ in 0..6 {
            let member = draw.pick(4);
            match draw.pick(4) {
                0 => drop(w.exit_if_running("g", member as i32, 1)),
                1 if w.pods().len() > member => {
                    let key = Key::of(&w.pods()[member]);
                    w.delete(WatchedKind::Pod, &key);
                }
                _ => {}
            }
            w.rounds(draw.pick(8));
            lose(&mut w, draw.pick(5));
            w.rounds(draw.pick(8));
        }
        w.rounds(900);
        let s = w.status();
        let (phase, story) = (s.phase, w.story(25));
        assert_eq!(
            phase,
            Some(Phase::Running),
            "seed {seed}: {} {}; {story}",
            s.reason,
            s.message
        );
        assert_eq!(w.uids().len(), 4, "seed {seed}: {story}");
    }
}

fn lose(w: &mut Solo, object: usize) {
    let key = w.key().clone();
    let kind = match object {
        0 => return lose_status(w),
        1 => return lose_order(w),
        2 => WatchedKind::Service,
        3 => WatchedKind::Workload,
        _ => WatchedKind::PodGroup,
    };
    let of_kind: Vec<Key> = w.store().all(kind).map(|(key, _)| key.clone()).collect();
    if let Some(lost) = of_kind
        .into_iter()
        .find(|k| kind == WatchedKind::PodGroup || *k == key)
    {
        w.delete(kind, &lost);
    }
}

#[test]
fn a_hash_of_another_version_changes_nothing_but_the_recorded_hash() {
    for edited in [false, true] {
        let mut w = Solo::supervised(in_place_only(4));
        w.settle();
        let before = (w.uids(), w.children(), w.status().attempt);
        let hash = w.status().applied.unwrap().spec_hash;
        let other = "0-0123abcd";
        let key = w.key().clone();
        assert!(record_hash(&mut w.cluster, &key, other));
        if edited {
            w.edit(|spec| spec.failure_policy.start_deadline_seconds += 1);
        }
        w.rounds(120);
        let after = (w.uids(), w.children(), w.status().attempt);
        assert_eq!(after, before, "edited {edited}: {}", w.story(30));
        assert_eq!(w.status().applied.unwrap().spec_hash, hash);
        // Members of both versions run together.
        w.delete_pod("g", 0);
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running));
        let kept = w
            .uids()
            .into_iter()
            .filter(|(m, uid)| before.0.get(m) == Some(uid));
        assert_eq!(kept.count(), 3);
    }
}
