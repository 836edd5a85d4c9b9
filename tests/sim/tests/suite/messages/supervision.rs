//! Stories of restarts in place with and without a barrier.

use lockstep_sim::Solo;
use lockstep_sim::api::Refused;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

use super::solo::{Story, after};

pub(super) const STORIES: &[Story] = &[
    ("wants no supervisor", || {
        let more = json!({"failurePolicy": {"inPlace": {"supervisor": "Never"}}});
        let mut w = Solo::supervised(gang_with(2, &more));
        w.settle();
        w
    }),
    ("runs on Windows", || {
        obstructed(&json!({}), &json!({"os": {"name": "windows"}}))
    }),
    ("runs in a sandbox", || {
        obstructed(&json!({}), &json!({"runtimeClassName": "gvisor"}))
    }),
    ("has a stop signal that no supervisor passes on", || {
        let signal = json!({"stopSignal": "SIGRTMIN+3"});
        let linux = json!({"os": {"name": "linux"}});
        obstructed(&json!({"lifecycle": signal}), &linux)
    }),
    ("sets no command", || {
        obstructed(&json!({"command": []}), &json!({}))
    }),
    ("has a postStart hook", || {
        let hook = json!({"exec": {"command": ["warm-up"]}});
        obstructed(&json!({"lifecycle": {"postStart": hook}}), &json!({}))
    }),
    ("runs one task after the other", || {
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [0]}});
        obstructed(
            &json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}),
            &json!({}),
        )
    }),
    ("has restart rules of its own", || {
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
        obstructed(
            &json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}),
            &json!({}),
        )
    }),
    ("may change its user but not signal its processes", || {
        let capabilities = json!({"drop": ["ALL"], "add": ["SETUID", "SETGID"]});
        obstructed(
            &json!({"securityContext": {"capabilities": capabilities}}),
            &json!({}),
        )
    }),
    ("has a terminal", || {
        obstructed(&json!({"tty": true}), &json!({}))
    }),
    ("is probed at a port", || {
        let probe = json!({"tcpSocket": {"port": 8080}});
        obstructed(&json!({"livenessProbe": probe}), &json!({}))
    }),
    ("uses the supervisor's names", || {
        let volume = json!({"name": "lockstep", "emptyDir": {}});
        obstructed(&json!({}), &json!({"volumes": [volume]}))
    }),
    ("may not have the supervisor's image", || {
        let mut w = Solo::supervised(gang_with(2, &json!({})));
        w.store().admission.webhook = Some(Box::new(|pod| {
            let mut inits = pod["spec"]["initContainers"]
                .as_array()
                .into_iter()
                .flatten();
            let added = inits.any(|c| c["image"] == "lockstep-supervisor");
            if added {
                return Err(Refused::forbidden(
                    "pods \"w-g-0-0\" is forbidden: image lockstep-supervisor is not permitted",
                ));
            }
            Ok(())
        }));
        w.wait(60);
        w
    }),
    ("is of members that stand alone", || {
        let mut w = Solo::supervised(gang_with(2, &json!({"scheduling": {"policy": "Basic"}})));
        w.settle();
        w
    }),
    ("starts where no agent is linked to supervisors", not_linked),
    ("has hooks that a restart in place leaves out", || {
        let hooks = json!({"preStop": {"exec": {"command": ["save"]}},
            "postStart": {"exec": {"command": ["warm-up"]}}});
        let mut spec = gang_with(2, &json!({}));
        spec["groups"][0]["template"]["spec"]["containers"][0]["lifecycle"] = hooks;
        after(spec, 30)
    }),
    ("has a hook that a supervised restart leaves out", || {
        let hook = json!({"preStop": {"exec": {"command": ["save"]}}});
        obstructed(&json!({"lifecycle": hook}), &json!({}))
    }),
];

/// A gang in an installation with supervisors, with further fields of its training container and
/// pods.
fn obstructed(container: &Value, pod: &Value) -> Solo {
    let mut spec = gang_with(2, &json!({}));
    let template = &mut spec["groups"][0]["template"]["spec"];
    extend(template, pod);
    extend(&mut template["containers"][0], container);
    let mut w = Solo::supervised(spec);
    w.settle();
    w
}

fn extend(object: &mut Value, more: &Value) {
    for (field, value) in more.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
}

/// The agents start after the pods.
fn not_linked() -> Solo {
    let mut w = Solo::supervised(gang_with(2, &json!({})));
    w.faults(|f| f.no_agent = true);
    w.settle();
    w.faults(|f| f.no_agent = false);
    w.settle();
    w
}
