//! `bug-report` over a cluster with secrets in every place that it must not copy.

use std::collections::BTreeMap;
use std::io::Read;

use lockstep_cli::bug_report::{BugReport, BugReportSummary, Choice, Material, fields};
use lockstep_cli::dashboard::recorded::recorded;
use lockstep_cli::doctor::diagnose;
use lockstep_cli::doctor_facts::{BudgetFacts, InstallFacts, ObjectFacts};
use lockstep_cli::file::unpack;
use serde_json::{Value, json};

use crate::dashboard_fixture::{Lists, NODES, PODS, WORKLOADS, jobs, lists};
use crate::live_server::{LiveServer, Rights};
use crate::problems::{ask, stderr, stdout};
use crate::support::{ago, matches_golden, now};

/// Begin of all secrets.
const SECRET: &str = "zecret";
const EVENTS: &str = "/api/v1/events";
const CONFIG: &str = "scheduler: {preemption: {victims: {excludedNamespaces: [vault-team]}}}\nzecret: {key: zecret-config}\n";

/// Adds a secret to each place of a container that a user or a program writes.
fn spoil_containers(spec: &mut Value) {
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        container["env"] = json!([{"name": "TOKEN", "value": "zecret-env"},
            {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "zecret-ref", "key": "k"}}}]);
        container["args"] = json!(["--key=zecret-arg"]);
        container["command"] = json!(["run", "zecret-command"]);
        container["zecretNews"] = json!({"deep": ["zecret-unknown"]});
        container["volumeMounts"] = json!([{"name": "zecret-volume", "mountPath": "/zecret"}]);
    }
    spec["zecretNews"] = json!("zecret-unknown");
    spec["volumes"] = json!([{"name": "v", "secret": {"secretName": "zecret-volume"}}]);
}

fn spoil_metadata(object: &mut Value) {
    object["metadata"]["annotations"] = json!({"note": "zecret-note",
        "kubectl.kubernetes.io/last-applied-configuration": "{\"spec\": \"zecret-applied\"}"});
    object["metadata"]["labels"]["owner"] = json!("zecret-label");
    object["metadata"]["managedFields"] = json!([{"manager": "zecret-manager"}]);
    object["zecretNews"] = json!({"a": "zecret-unknown"});
}

/// The cluster of the dashboard with secrets, and messages that quote them.
fn secretive() -> Lists {
    let mut lists = lists();
    for object in lists.values_mut().flatten() {
        spoil_metadata(object);
    }
    for node in lists.get_mut(NODES).unwrap() {
        node["status"]["conditions"][0]["message"] = json!("zecret-kernel");
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.99.0.1"}]);
    }
    let quoted = "container t of pod llama-workers-0-3 on node n04 ended with exit code 1 (Error): zecret-older";
    for workload in lists.get_mut(WORKLOADS).unwrap() {
        spoil_containers(&mut workload["spec"]["groups"][0]["template"]["spec"]);
        if workload["status"]["progress"].is_object() {
            workload["status"]["progress"]["metrics"] =
                json!([{"name": "loss", "value": "zecret-metric"}]);
        }
        for incident in workload["status"]["history"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            incident["cause"]["message"] = json!("zecret-cause.");
        }
        workload["status"]["message"] = json!(format!("ended: zecret-cause; {quoted}"));
    }
    let ended =
        |reason: &str| json!({"exitCode": 1, "reason": reason, "message": "zecret-termination"});
    for pod in lists.get_mut(PODS).unwrap() {
        spoil_containers(&mut pod["spec"]);
        pod["status"]["podIP"] = json!("10.99.0.2");
        pod["status"]["message"] = json!("failed with zecret-termination and --key=zecret-arg");
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "message": "zecret-condition"}]);
        pod["status"]["containerStatuses"] = json!([{"name": "t", "image": "registry.example/trainer:1",
            "imageID": "registry.example/trainer@sha256:00", "restartCount": 1, "ready": true,
            "lastState": {"terminated": ended("Error")}, "state": {"waiting": {"reason": "CrashLoopBackOff",
                "message": "zecret-waiting"}}}]);
    }
    let event = |component: &str, reason: &str, message: &str| {
        json!({"metadata": {"name": "llama.1", "namespace": "ml"}, "type": "Warning", "reason": reason,
            "message": message, "count": 2, "lastTimestamp": ago(9), "source": {"component": component},
            "involvedObject": {"kind": "TrainingWorkload", "namespace": "ml", "name": "llama", "uid": "uid-llama",
                "zecretNews": "zecret-unknown"}})
    };
    lists.insert(
        EVENTS.to_owned(),
        vec![
            event(
                "lockstep.dev/manager",
                "RestartGang",
                &format!("restarting all 8 pods of llama: {quoted}"),
            ),
            event("kubelet", "Unhealthy", "probe failed: zecret-probe"),
            event("another-operator", "Custom", "says zecret-program"),
        ],
    );
    lists
}

fn kind(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

fn material(lists: &Lists, logs: bool) -> Material {
    let mut material = Material::default();
    let fields = fields(logs);
    for (path, list) in lists {
        let Some(fields) = fields.get(kind(path)) else {
            continue;
        };
        for object in list {
            material.add(kind(path), fields, object.clone());
        }
    }
    material.configuration = Some(CONFIG.to_owned());
    let mut diagnosis = diagnose(&InstallFacts::default(), now());
    diagnosis.checks[0].message = "no ready agent on n04 in namespace vault-team".to_owned();
    material.doctor = Some(diagnosis);
    material
}

fn choice(logs: bool) -> Choice {
    Choice {
        pseudonyms: true,
        logs,
        ..Choice::default()
    }
}

fn report(lists: &Lists, choice: &Choice) -> BugReport {
    material(lists, choice.logs).report(choice, now()).unwrap()
}

/// The files of an archive; compressed files are unpacked.
fn files(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        if path.ends_with("/cluster.json.zst") {
            content = zstd::decode_all(content.as_slice()).unwrap();
        }
        let path = path
            .strip_prefix("lockstep-bug-report/")
            .unwrap()
            .to_owned();
        files.insert(path, String::from_utf8(content).unwrap());
    }
    files
}

fn snapshot_of(bytes: &[u8]) -> lockstep_model::SnapshotFile {
    let json = &files(bytes)["cluster.json.zst"];
    unpack(&zstd::encode_all(json.as_bytes(), 3).unwrap()).unwrap()
}

#[test]
fn no_secret_gets_into_an_archive() {
    let report = report(&secretive(), &choice(false));
    let files = files(&report.bytes);
    for (path, text) in &files {
        let at = text
            .find(SECRET)
            .map(|at| &text[at.saturating_sub(80)..(at + 40).min(text.len())]);
        assert!(at.is_none() && !text.contains("10.99."), "{path}: {at:?}");
    }
    let of = |kind: &str| {
        serde_json::from_str::<Value>(&files[&format!("objects/{kind}.json")]).unwrap()
    };
    assert_eq!(of("nodes").as_array().unwrap().len(), 40);
    assert_eq!(
        of("trainingworkloads")[1]["status"]["history"][0]["cause"]["exitCode"],
        137
    );
    let pod = &of("pods")[0]["status"]["containerStatuses"][0];
    assert_eq!(
        pod["lastState"]["terminated"],
        json!({"exitCode": 1, "reason": "Error"})
    );
    let events = of("events");
    let expected = "restarting all 8 pods of workload-2: container container-2 of pod pod-04 on node node-04 ended with exit code 1 (Error): [left out]";
    assert_eq!(events[0]["message"], expected);
    let silent = events.as_array().unwrap().iter().skip(1);
    let silent: Vec<&str> = silent
        .filter(|e| e["message"].is_null())
        .filter_map(|e| e["reason"].as_str())
        .collect();
    assert_eq!(silent, ["Custom", "Unhealthy"]);
}

#[test]
fn names_are_pseudonyms_in_all_files() {
    let report = report(&secretive(), &choice(false));
    let mut names: Vec<String> = jobs().iter().map(|job| job.name.to_owned()).collect();
    names.extend((1..=40).map(|n| format!("n{n:02}")));
    names.extend(
        [
            "ml", "research", "shop", "r1", "workers", "registry", "high", "vault",
        ]
        .map(str::to_owned),
    );
    for (path, text) in files(&report.bytes) {
        // Real UIDs have no names.
        let words = text.split('"').filter(|word| !word.starts_with("uid-"));
        for word in words.flat_map(|word| word.split(|c: char| !c.is_alphanumeric())) {
            assert!(!names.iter().any(|name| name == word), "{path}: {word}");
        }
    }
    assert!(report.names.contains("node-04\tn04\n"), "{}", report.names);
    let with_names = Choice {
        pseudonyms: false,
        ..choice(false)
    };
    let report = self::report(&secretive(), &with_names);
    let files = files(&report.bytes);
    assert!(files["doctor.json"].contains("n04") && report.names.is_empty());
    assert!(!files.values().any(|text| text.contains(SECRET)));
}

#[test]
fn equal_clusters_give_equal_archives() {
    let mut shuffled = secretive();
    for list in shuffled.values_mut() {
        list.reverse();
    }
    let first = report(&secretive(), &choice(false));
    assert_eq!(first.bytes, report(&shuffled, &choice(false)).bytes);
}

#[test]
fn the_snapshot_of_an_archive_gives_the_queue_of_the_cluster() {
    let report = report(&secretive(), &choice(false));
    assert_eq!(report.summary.missing, Vec::<String>::new());
    let file = snapshot_of(&report.bytes);
    let queue = |file| {
        let view = recorded(file);
        let report = lockstep_cli::queue::queue(view.snapshot.as_ref().unwrap(), view.groups());
        let gangs = report.gangs.into_iter();
        gangs
            .map(|g| (g.position, g.priority, g.reservation.map(|r| r.nodes.len())))
            .collect::<Vec<_>>()
    };
    let real = crate::dashboard_fixture::view();
    let mut objects = real.objects(None);
    objects.pods = lists()[PODS]
        .iter()
        .map(|pod| {
            let pod: lockstep_model::parse::partial::PartialPod =
                serde_json::from_value(pod.clone()).unwrap();
            pod.scheduling().unwrap()
        })
        .collect();
    objects
        .pods
        .sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let expected = queue(crate::support::snapshot(objects));
    assert!(expected.len() > 2);
    assert_eq!(queue(file), expected);
}

#[test]
fn a_report_about_one_workload_has_its_objects_only() {
    let chosen = Choice {
        namespace: Some("ml".to_owned()),
        workloads: vec!["llama".to_owned()],
        ..choice(false)
    };
    let report = report(&secretive(), &chosen);
    let of = |kind: &str| {
        report
            .summary
            .objects
            .iter()
            .find(|(k, _)| k == kind)
            .unwrap()
            .1
    };
    assert_eq!(
        (of("trainingworkloads"), of("podgroups"), of("pods")),
        (1, 1, 8)
    );
}

#[test]
fn agents_and_checks_tell_nothing_about_other_workloads() {
    let mut lists = secretive();
    let entries = json!([{"podUID": "uid-zecret"}, {"workloadUID": "uid-llama"}]);
    let agent =
        json!({"metadata": {"name": "n01"}, "status": {"arrivals": entries, "reports": entries}});
    lists.insert("/nodeagents".to_owned(), vec![agent]);
    let request = json!({"id": "1", "preemptor": "vault/zecret-gang"});
    lists
        .values_mut()
        .flatten()
        .filter(|o| o["spec"]["gangKey"].is_string())
        .for_each(|group| group["status"]["checkpointRequest"] = request.clone());
    let mut material = material(&lists, false);
    let unread = "trainingworkload vault/zecret-job: invalid type: string \"zecret\"";
    let mut facts = InstallFacts {
        budgets: Some(vec![BudgetFacts {
            namespace: "zecret-team".to_owned(),
            name: "zecret-budget".to_owned(),
            failed: true,
            ..BudgetFacts::default()
        }]),
        objects: vec![ObjectFacts {
            kind: "trainingworkloads".to_owned(),
            read: Some((0, vec![unread.to_owned()])),
        }],
        ..InstallFacts::default()
    };
    material.note_facts(&mut facts);
    material.doctor = Some(diagnose(&facts, now()));
    let files = files(&material.report(&choice(false), now()).unwrap().bytes);
    assert!(files["objects/nodeagents.json"].contains("uid-llama"));
    assert!(files["objects/podgroups.json"].contains("\"preemptor\": \"namespace-"));
    for (path, text) in &files {
        assert!(!text.contains(SECRET) && !text.contains("vault"), "{path}");
    }
}

#[test]
fn an_invalid_configuration_is_named_as_not_read() {
    let mut material = material(&secretive(), false);
    material.configuration = Some("scheduler: [zecret".to_owned());
    let report = material.report(&choice(false), now()).unwrap();
    let expected = "configuration of the manager: invalid";
    assert_eq!(report.summary.missing, [expected]);
}

#[test]
fn values_of_dropped_labels_stay_in_messages() {
    let mut lists = secretive();
    for node in lists.get_mut(NODES).unwrap() {
        node["metadata"]["labels"]["owner"] = json!("restarting");
    }
    let files = files(&report(&lists, &choice(false)).bytes);
    assert!(files["objects/events.json"].contains("restarting all 8 pods"));
}

#[test]
fn logs_and_termination_messages_are_copied_on_request_only() {
    let mut material = material(&secretive(), true);
    let place = ["ml", "llama-workers-0-3", "t"].map(str::to_owned);
    material
        .logs
        .push((place, "step 1 on n04\nzecret-line zecret-env".to_owned()));
    let files = files(&material.report(&choice(true), now()).unwrap().bytes);
    let log = files
        .iter()
        .find(|(path, _)| path.starts_with("logs/"))
        .unwrap();
    assert_eq!(log.0, "logs/namespace-2/pod-04.container-2.log");
    assert_eq!(log.1, "step 1 on node-04\nzecret-line [left out]\n");
    assert!(files["objects/pods.json"].contains("zecret-termination"));
    assert!(!files["objects/pods.json"].contains("zecret-env"));
}

fn summary() -> BugReportSummary {
    BugReportSummary {
        archive: "bug-report.tar.gz".to_owned(),
        bytes: 48_210,
        names: "bug-report.names.txt".to_owned(),
        objects: vec![("events".to_owned(), 12), ("pods".to_owned(), 36)],
        snapshot: None,
        pseudonyms: true,
        missing: vec!["nodes: not allowed; ask an administrator to bind you ClusterRole lockstep-whatif or lockstep-oncall".to_owned()],
        ..BugReportSummary::default()
    }
}

#[test]
fn the_screen_names_files_contents_and_missing_rights() {
    let other = BugReportSummary {
        pseudonyms: false,
        logs: Some(3),
        snapshot: Some([40, 8]),
        missing: Vec::new(),
        ..summary()
    };
    matches_golden("bug-report", &[&summary(), &other]);
}

#[test]
fn a_tenant_gets_an_archive_of_her_namespace_and_the_missing_rights() {
    let server = LiveServer::start(secretive(), Rights::Tenant);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.tar.gz");
    let path = path.to_str().unwrap();
    let out = ask(&server.address, &["bug-report", "-n", "ml", "-o", path]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(
        stdout(&out).contains("Not read: nodes: not allowed; ask an administrator"),
        "{}",
        stdout(&out)
    );
    let files = files(&std::fs::read(path).unwrap());
    assert!(
        files.keys().any(|path| path == "objects/pods.json")
            && !files.contains_key("objects/nodes.json")
    );
    assert!(
        !files
            .values()
            .any(|text| text.contains(SECRET) || text.contains("\"ana\""))
    );
    let names = std::fs::read_to_string(dir.path().join("r.names.txt")).unwrap();
    assert!(names.contains("\tllama\n"), "{names}");
}

#[test]
fn an_archive_of_the_program_can_be_replayed() {
    let server = LiveServer::start(secretive(), Rights::All);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.tar.gz");
    let out = ask(
        &server.address,
        &["bug-report", "-A", "-o", path.to_str().unwrap()],
    );
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let bytes = std::fs::read(path).unwrap();
    let view = recorded(snapshot_of(&bytes));
    assert_eq!(
        (view.nodes.unwrap().len(), view.pods.unwrap().len() > 20),
        (40, true)
    );
    assert!(!files(&bytes).values().any(|text| text.contains(SECRET)));
    let missing = ask(&server.address, &["bug-report", "nobody", "-n", "ml"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        stderr(&missing).contains("\"nobody\" not found"),
        "{}",
        stderr(&missing)
    );
}
