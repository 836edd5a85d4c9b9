//! Placements of gangs that kube-scheduler places.

use k8s_openapi::api::core::v1::Pod;
use lockstep_sim::{Gangs, Key, SimCluster};
use serde_json::json;

use crate::{LOW, run};

/// A running gang that kube-scheduler has placed.
fn placed() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.native_support(true);
    let backend = json!({"scheduling": {"backend": "Kubernetes"}});
    world.gang_with("g", LOW, &backend);
    run(&mut world, 5);
    assert_eq!(world.running("g"), 2);
    assert_eq!(world.nodes("g"), ["n1", "n1"]);
    world
}

#[test]
fn a_released_gang_is_not_recorded_again_from_pods_that_have_ended() {
    let mut world = placed();
    for pod in world.pods_of("g") {
        SimCluster::edit::<Pod>(&mut world, &Key::of(&pod), |pod| {
            pod.status.get_or_insert_default().phase = Some("Failed".into());
        });
    }
    world.release("g");
    for _ in 0..3 {
        world.schedule();
        assert!(
            world.placement("g").is_none() || world.released("g"),
            "{:?}",
            world.placement("g")
        );
    }
    run(&mut world, 20);
    assert_eq!(world.running("g"), 2);
}
