//! Gangs of others: what is lost with one of their pods.

use lockstep_sim::{Gangs, Spec};
use serde_json::{Value, json};

const HIGH: Spec = Spec {
    priority: 100,
    members: 1,
    gpus: 1,
};

/// A pod of an Indexed Job.
fn indexed(job: &str, index: u8) -> Value {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true});
    let labels = json!({"batch.kubernetes.io/job-completion-index": index.to_string()});
    json!({"metadata": {"labels": labels, "ownerReferences": [owner]}})
}

#[test]
fn a_pod_of_a_job_of_many_costs_the_whole_job_and_a_pod_on_its_own_goes_instead() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 2)]);
    world.foreign_with("job-0", "n1", 0, 1, &indexed("job", 0));
    world.foreign_with("job-1", "n2", 0, 1, &indexed("job", 1));
    world.foreign_with("job-2", "n3", 0, 2, &indexed("job", 2));
    world.later(600);
    world.node("n4", 1, true);
    world.foreign("alone", "n4", 0, 1);
    world.later(1200);
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(intent.victims[0].name, "alone");
    assert!(intent.proven, "{}", intent.explanation);
}

#[test]
fn the_cost_of_a_pod_of_a_job_is_that_of_the_job_and_only_the_pods_that_are_needed_go() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 2)]);
    world.foreign_with("job-0", "n1", 0, 1, &indexed("job", 0));
    world.foreign_with("job-1", "n2", 0, 1, &indexed("job", 1));
    world.foreign_with("job-2", "n3", 0, 2, &indexed("job", 2));
    world.later(600);
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(intent.victims.len(), 1);
    // Four accelerators for ten minutes, and a restart.
    assert_eq!(intent.cost, 4 * (600 + 120), "{}", intent.explanation);
}
