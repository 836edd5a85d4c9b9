//! Stories of requests for checkpoints.

use chrono::TimeDelta;
use lockstep_api::TrainingWorkload;
use lockstep_api::names::annotations;
use lockstep_api::scheduling::PreemptionRequest;
use lockstep_sim::solo::gang_with;
use lockstep_sim::{ReportedProgress, Solo};
use serde_json::{Value, json};

use super::solo::{Story, settled};

pub(super) const STORIES: &[Story] = &[
    ("is suspended when it has saved", || {
        suspended("save", &json!({}))
    }),
    ("has two restart domains that save", || {
        let scope = json!({"failurePolicy": {"restartScope": "Replica"}});
        suspended("save", &scope)
    }),
    ("does not save in time", || suspended("ignore", &json!({}))),
    ("has no handler", || suspended("", &json!({}))),
    ("saves and ends", || suspended("0", &json!({}))),
    ("is resumed before it has saved", || {
        let mut w = able("ignore", &json!({}));
        w.edit(|spec| spec.suspend = true);
        w.rounds(3);
        w.edit(|spec| spec.suspend = false);
        settled(w)
    }),
    ("ends for a user", || {
        let mut w = able("143", &json!({}));
        let key = w.key().clone();
        w.cluster.edit::<TrainingWorkload>(&key, |workload| {
            let all = workload.metadata.annotations.get_or_insert_default();
            all.insert(annotations::REQUEST_CHECKPOINT.into(), "by-me".into());
        });
        settled(w)
    }),
    ("is preempted after its next checkpoint", || {
        let mut w = able("", &json!({}));
        requested_by_scheduler(&mut w, true);
        w
    }),
    ("is asked for a preemption that is withdrawn", || {
        let mut w = able("ignore", &json!({}));
        requested_by_scheduler(&mut w, false);
        w.edit_group("workload", |group| {
            group.status.get_or_insert_default().checkpoint_request = None;
        });
        settled(w)
    }),
    ("can be asked where kube-scheduler places", || {
        settled(Solo::kubernetes(spec("save", &json!({}))))
    }),
];

fn requested_by_scheduler(w: &mut Solo, watch: bool) {
    let deadline = w.now() + TimeDelta::seconds(30);
    w.edit_group("workload", |group| {
        let status = group.status.get_or_insert_default();
        status.checkpoint_request = Some(PreemptionRequest {
            id: "p1".to_owned(),
            deadline,
            preemptor: "ns/boss".to_owned(),
            watch,
        });
    });
    w.pass();
}

fn spec(reaction: &str, more: &Value) -> Value {
    let mut spec = gang_with(2, more);
    spec["checkpoint"] = json!({"onRequest": {"timeoutSeconds": 30}});
    let container = &mut spec["groups"][0]["template"]["spec"]["containers"][0];
    container["command"] = json!(["train"]);
    if !reaction.is_empty() {
        container["env"] = json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": reaction}]);
    }
    spec
}

/// Runs, and has reported step 7.
pub(super) fn able(reaction: &str, more: &Value) -> Solo {
    let mut w = settled(Solo::supervised(spec(reaction, more)));
    for index in 0..2 {
        let pod = w.pod("g", index);
        w.progress_with(&pod, ReportedProgress::of(7, None));
    }
    settled(w)
}

fn suspended(reaction: &str, more: &Value) -> Solo {
    let mut w = able(reaction, more);
    w.edit(|spec| spec.suspend = true);
    w.rounds(40);
    w
}
