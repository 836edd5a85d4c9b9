//! What users see of a workload in trouble: `kubectl get tw`, conditions and events of `kubectl
//! describe tw`, and `kubectl lockstep status`, in one file to be read: `golden/screens.txt`.
//!
//! The simulation brings the workload there. `UPDATE_GOLDEN=1` writes the file.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::CustomResourceExt;
use lockstep_api::workload::TrainingWorkloadStatus;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_cli::status::{WorkloadObjects, status};
use lockstep_cli::view::age::age;
use lockstep_cli::view::{RenderOptions, View};
use lockstep_lifecycle::{EventNote, EventType};
use lockstep_sim::api::{Refused, Verb};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

use crate::matches_golden;

/// A workload in trouble.
struct Trouble {
    title: &'static str,
    play: fn() -> Solo,
    /// Column REASON of `kubectl get tw`.
    reason: &'static str,
    /// Words of the conditions or events, and of `kubectl lockstep status`.
    cause: &'static str,
    /// Words of `kubectl lockstep status`.
    remedy: &'static str,
}

const TROUBLES: &[Trouble] = &[
    Trouble {
        title: "An admission webhook is down",
        play: || {
            let mut w = Solo::new(gang(2));
            webhook_is_down(&mut w);
            w.wait(30);
            w
        },
        reason: "APIServerError",
        cause: "failed calling webhook \"gate.example.com\"",
        remedy: "fix what the message names, such as an unavailable webhook",
    },
    Trouble {
        title: "An admission webhook is down while a gang needs a new pod",
        play: || {
            let mut w = Solo::new(gang(2));
            w.settle();
            webhook_is_down(&mut w);
            w.delete_pod("g", 0);
            w.rounds(30);
            w
        },
        reason: "APIServerError",
        cause: "failed calling webhook \"gate.example.com\"",
        remedy: "fix what the message names, such as an unavailable webhook",
    },
    Trouble {
        title: "The training program fails, and no restart is left",
        play: || {
            let more = json!({"failurePolicy": {"limits": {"maxRestarts": 0}}});
            let mut w = Solo::supervised(gang_with(2, &more));
            w.settle();
            w.exit("g", 0, 3);
            w.settle();
            w
        },
        reason: "RestartLimitExceeded",
        cause: "ended with exit code 3 (Error)",
        remedy: "`kubectl lockstep logs w --failed -n ns` shows the log",
    },
    Trouble {
        title: "An image does not exist",
        play: || {
            let env = json!([{"name": "HOLLOW_NOT_CREATED", "value": "ErrImagePull"}]);
            after(template(2, "env", &env), 15)
        },
        reason: "ImageUnavailable",
        cause: "container t waits: ErrImagePull",
        remedy: "fix the image that the message names",
    },
    Trouble {
        title: "An image does not exist, and three starts have failed",
        play: || {
            let env = json!([{"name": "HOLLOW_NOT_CREATED", "value": "ErrImagePull"}]);
            let mut spec = template(2, "env", &env);
            spec["failurePolicy"]["startDeadlineSeconds"] = json!(20);
            after(spec, 150)
        },
        reason: "ImageUnavailable",
        cause: "3 starts in a row failed",
        remedy: "fix the image that the message names",
    },
    Trouble {
        title: "A command does not exist",
        play: || {
            let env = json!([{"name": "HOLLOW_EXIT", "value": "128"},
                {"name": "HOLLOW_REASON", "value": "StartError"}]);
            after(template(2, "env", &env), 20)
        },
        reason: "StartError",
        cause: "cannot be started: container t",
        remedy: "fix the command or configuration of the container",
    },
    Trouble {
        title: "A gang of one member restarts in place",
        play: || {
            let mut w = Solo::supervised(gang(1));
            w.settle();
            w.exit("g", 0, 3);
            w.until("the restart", |w| w.status().attempt >= 2);
            w
        },
        reason: "RestartGang",
        cause: "exit code 3",
        remedy: "no action needed: the workload is restarting",
    },
    Trouble {
        title: "No scheduler serves schedulerName",
        play: || {
            let mut spec = gang(2);
            spec["groups"][0]["template"]["spec"]["schedulerName"] = json!("volcano");
            after(spec, 15)
        },
        reason: "NotBound",
        cause: "no scheduler has bound pod",
        remedy: "set schedulerName of the template to a running scheduler",
    },
    Trouble {
        title: "Members on the host network share a port with another workload",
        play: || {
            let mut spec = fails_with(json!([{"name": "HOLLOW_EXIT", "value": "1"}]));
            spec["groups"][0]["template"]["spec"]["hostNetwork"] = json!(true);
            after(spec, 60)
        },
        reason: "RecreateGang",
        cause: "exit code 1",
        remedy: "spec.network.port",
    },
    Trouble {
        title: "A finished group holds no accelerators",
        play: || {
            let mut spec = gang(2);
            let mut long = spec["groups"][0].clone();
            long["name"] = json!("long");
            spec["groups"].as_array_mut().unwrap().push(long);
            let mut w = Solo::new(spec);
            w.settle();
            for index in 0..2 {
                w.exit("g", index, 0);
            }
            w.settle();
            w
        },
        reason: "AllMembersReady",
        cause: "all members are ready or have succeeded",
        remedy: "no action needed",
    },
    Trouble {
        title: "All groups have 0 replicas",
        play: || after(gang(0), 30),
        reason: "NoMembers",
        cause: "all groups have 0 replicas",
        remedy: "the workload starts when replicas of a group are raised",
    },
    Trouble {
        title: "A running workload is shrunk to 0 replicas",
        play: || {
            let mut w = after(gang(2), 30);
            w.edit(|spec| spec.groups[0].replicas = Some(0));
            w.settle();
            w
        },
        reason: "NoMembers",
        cause: "all groups have 0 replicas",
        remedy: "the workload starts when replicas of a group are raised",
    },
    Trouble {
        title: "A pod exceeds its own activeDeadlineSeconds",
        play: || {
            let mut spec = gang(2);
            spec["groups"][0]["template"]["spec"]["activeDeadlineSeconds"] = json!(30);
            after(spec, 35)
        },
        reason: "RestartGang",
        cause: "DeadlineExceeded",
        remedy: "`kubectl lockstep logs w --failed -n ns` shows the log",
    },
    Trouble {
        title: "A node is drained",
        play: || {
            let mut w = Solo::new(gang(2));
            w.settle();
            let pod = w.pod("g", 1);
            w.evict(&pod).unwrap();
            w.settle();
            w
        },
        reason: "AllMembersReady",
        cause: "EvictionByEvictionAPI",
        remedy: "no action needed",
    },
    Trouble {
        title: "A priority class does not exist",
        play: || after(gang_with(2, &json!({"priorityClassName": "hihg"})), 10),
        reason: "InvalidPriorityClass",
        cause: "no PriorityClass \"hihg\" exists",
        remedy: "`kubectl lockstep suspend w -n ns`, then `kubectl edit tw w -n ns`",
    },
    Trouble {
        title: "A template is invalid",
        play: || {
            let mut w = Solo::new(gang(2));
            w.store().admission.invalid = Some("spec.containers[0].image: Required value".into());
            w.wait(10);
            w
        },
        reason: "InvalidTemplate",
        cause: "spec.containers[0].image: Required value",
        remedy: "`kubectl lockstep suspend w -n ns`, then `kubectl edit tw w -n ns`",
    },
    Trouble {
        title: "The training program exceeds its memory limit twice",
        play: || {
            let oom = json!([{"name": "HOLLOW_EXIT", "value": "137"},
                {"name": "HOLLOW_REASON", "value": "OOMKilled"}]);
            after(fails_with(oom), 30)
        },
        reason: "RestartGang",
        cause: "OOMKilled",
        remedy: "raise the memory limit of the training container",
    },
    Trouble {
        title: "The training program fails again and again",
        play: || {
            after(
                fails_with(json!([{"name": "HOLLOW_EXIT", "value": "1"}])),
                60,
            )
        },
        reason: "RecreateGang",
        cause: "exit code 1",
        remedy: "have one cause (exit code 1, Error)",
    },
    Trouble {
        title: "The timeout of the queue has ended a workload",
        play: || {
            let scheduling = json!({"timeoutSeconds": 30, "onTimeout": "Fail"});
            after(gang_with(20, &json!({"scheduling": scheduling})), 60)
        },
        reason: "SchedulingTimeout",
        cause: "not scheduled within 30 s (scheduling.timeoutSeconds)",
        remedy: "raise spec.scheduling.timeoutSeconds",
    },
    Trouble {
        title: "A member asks for more accelerators than a node has",
        play: || {
            let limits = json!({"limits": {"nvidia.com/gpu": "17"}});
            after(template(2, "resources", &limits), 10)
        },
        reason: "ExceedsLargestNode",
        cause: "nvidia.com/gpu",
        remedy: "request less for each pod of the template",
    },
    Trouble {
        title: "No node matches the node selector",
        play: || {
            let mut spec = gang(2);
            spec["groups"][0]["template"]["spec"]["nodeSelector"] = json!({"gpu": "h200"});
            after(spec, 10)
        },
        reason: "NoNodeMatches",
        cause: "nodes",
        remedy: "correct nodeSelector",
    },
    Trouble {
        title: "No node has the topology label",
        play: || {
            let topology = json!({"scheduling": {"topology": {"key": "example.com/rack"}}});
            after(gang_with(2, &topology), 10)
        },
        reason: "NoTopologyLabel",
        cause: "example.com/rack",
        remedy: "label the nodes",
    },
    Trouble {
        title: "The gang is larger than the cluster",
        play: || after(gang(20), 10),
        reason: "ExceedsCluster",
        cause: "nvidia.com/gpu",
        remedy: "add nodes",
    },
];

fn after(spec: Value, seconds: usize) -> Solo {
    let mut w = Solo::new(spec);
    w.rounds(seconds);
    w
}

fn webhook_is_down(w: &mut Solo) {
    let words = "failed calling webhook \"gate.example.com\": no endpoints";
    w.store().admission.webhook = Some(Box::new(move |_| {
        Err(Refused::new(500, "InternalError", words))
    }));
}

/// A gang with this field of its training container.
fn template(members: i32, field: &str, value: &Value) -> Value {
    let mut spec = gang(members);
    spec["groups"][0]["template"]["spec"]["containers"][0][field] = value.clone();
    spec
}

/// A gang whose members end like this after five seconds each time.
fn fails_with(mut how: Value) -> Value {
    let runs = json!({"name": "HOLLOW_RUN_MILLIS", "value": "5000"});
    how.as_array_mut().unwrap().push(runs);
    template(2, "env", &how)
}

/// The three screens of a workload, each below its command.
fn screens(w: &Solo) -> [(&'static str, String); 3] {
    let workload = w.workload().unwrap();
    let now = w.now();
    let objects = WorkloadObjects {
        groups: w.list::<PodGroup>(),
        pods: Some(w.list::<Pod>().into_iter().filter(is_member).collect()),
        workload: workload.clone(),
        domains: std::collections::BTreeMap::default(),
    };
    [
        ("kubectl get tw w", columns(&workload, now)),
        ("kubectl describe tw w", describe(w, &workload, now)),
        (
            "kubectl lockstep status w",
            status(&objects, now).screen(&RenderOptions::plain(now)),
        ),
    ]
}

fn is_member(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.name == "w")
}

/// `kubectl get` with the columns of the definition.
fn columns(workload: &TrainingWorkload, now: DateTime<Utc>) -> String {
    let object = serde_json::to_value(workload).unwrap();
    let definition = serde_json::to_value(TrainingWorkload::crd()).unwrap();
    let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].clone();
    let (mut header, mut row) = (vec!["NAME".to_owned()], vec!["w".to_owned()]);
    for column in columns.as_array().unwrap() {
        if column["priority"].as_i64().unwrap_or_default() > 0 {
            continue;
        }
        let pointer = column["jsonPath"].as_str().unwrap().replace('.', "/");
        let value = object.pointer(&pointer).unwrap_or(&Value::Null);
        let text = match value {
            Value::String(time) if column["type"] == "date" => age(time.parse().ok(), now),
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        header.push(column["name"].as_str().unwrap().to_uppercase());
        row.push(text);
    }
    aligned(&[header, row], 3)
}

/// Conditions and events, as `kubectl describe` prints an object of any kind.
fn describe(w: &Solo, workload: &TrainingWorkload, now: DateTime<Utc>) -> String {
    let mut out = "Status:\n  Conditions:\n".to_owned();
    let mut rows = Vec::new();
    for condition in &workload.status.as_ref().unwrap().conditions {
        let condition = serde_json::to_value(condition).unwrap();
        // The keys of a JSON object are in order.
        for (key, value) in condition.as_object().unwrap() {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            rows.push(vec![format!("    {}:", label(key)), text]);
        }
    }
    out.push_str(&aligned(&rows, 2));
    let events = events(w);
    if events.is_empty() {
        return out + "Events:  <none>\n";
    }
    let texts = |row: [&str; 5]| row.map(str::to_owned).to_vec();
    let mut rows = vec![
        texts(["  Type", "Reason", "Age", "From", "Message"]),
        texts(["  ----", "------", "----", "----", "-------"]),
    ];
    for (at, event) in events {
        let kind = match event.type_ {
            EventType::Normal => "  Normal",
            EventType::Warning => "  Warning",
        };
        let age = age(Some(at), now);
        rows.push(texts([
            kind,
            &event.reason,
            &age,
            "lockstep.dev/manager",
            &event.note,
        ]));
    }
    out + "Events:\n" + &aligned(&rows, 2)
}

/// Events that the manager publishes for the status writes.
fn events(w: &Solo) -> Vec<(DateTime<Utc>, EventNote)> {
    let mut before = TrainingWorkloadStatus::default();
    let mut out = Vec::new();
    let store = w.store();
    for write in &store.log {
        if write.kind != WatchedKind::TrainingWorkload || write.verb != Verb::UpdateStatus {
            continue;
        }
        let spec = serde_json::from_value(write.object["spec"].clone()).unwrap();
        let after = serde_json::from_value(write.object["status"].clone()).unwrap();
        let events = lockstep_lifecycle::transitions(&spec, &before, &after);
        out.extend(events.into_iter().map(|event| (write.at, event)));
        before = after;
    }
    out
}

/// `lastTransitionTime` as `Last Transition Time`.
fn label(key: &str) -> String {
    let mut out = String::new();
    for (at, c) in key.chars().enumerate() {
        if at == 0 {
            out.extend(c.to_uppercase());
            continue;
        }
        if c.is_uppercase() {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// Columns with this gap, without spaces at the ends of lines.
fn aligned(rows: &[Vec<String>], gap: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default() + gap
    };
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:width$}", width = width(column));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[test]
fn screens_of_a_workload_in_trouble_name_cause_and_remedy() {
    let (mut page, mut missing) = (String::new(), Vec::new());
    for trouble in TROUBLES {
        let screens = screens(&(trouble.play)());
        let [get, describe, status] = screens.each_ref().map(|(_, screen)| screen);
        for (screen, words) in [
            (get, trouble.reason),
            (describe, trouble.cause),
            (status, trouble.cause),
            (status, trouble.remedy),
        ] {
            if !screen.contains(words) {
                missing.push(format!("{}: {words}", trouble.title));
            }
        }
        let _ = writeln!(page, "# {}", trouble.title);
        for (command, screen) in screens {
            let _ = write!(page, "\n$ {command}\n{screen}");
        }
        page.push('\n');
    }
    matches_golden("screens.txt", &page);
    assert_eq!(missing, [""; 0]);
}
