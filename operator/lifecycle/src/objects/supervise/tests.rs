use serde_json::{Value, json};

use super::*;

const IMAGE: &str = "registry/lockstep-supervisor:1";

fn group(pod: &Value) -> Group {
    serde_json::from_value(json!({"name": "workers", "size": 2, "template": {"spec": pod}}))
        .unwrap()
}

fn container(extra: &Value) -> Value {
    let mut c = json!({"name": "trainer", "image": "i", "command": ["torchrun"], "args": ["train.py", "--id", "$(X)"]});
    let extra = extra.as_object().unwrap().clone();
    c.as_object_mut().unwrap().extend(extra);
    c
}

fn supervised(pod: Value) -> Value {
    supervised_as(pod, Delivery::Copied, &InPlace::default())
}

fn supervised_as(pod: Value, delivery: Delivery, policy: &InPlace) -> Value {
    let mut pod: PodSpec = serde_json::from_value(pod).unwrap();
    supervise(&mut pod, "trainer", IMAGE, delivery, policy);
    serde_json::to_value(pod).unwrap()
}

#[test]
fn a_node_that_mounts_images_needs_no_init_container() {
    let mounted = |pod| supervised_as(pod, Delivery::Mounted, &InPlace::default());
    let probe = json!({"exec": {"command": ["check"]}});
    let pod = mounted(json!({"containers": [container(&json!({"startupProbe": probe}))]}));
    assert_eq!(pod.get("initContainers"), None);
    assert_eq!(
        pod["volumes"],
        json!([{"name": "lockstep", "emptyDir": {}}, {"name": "lockstep-run", "image": {"reference": IMAGE}}])
    );
    let trainer = &pod["containers"][0];
    assert_eq!(
        trainer["volumeMounts"],
        json!([{"name": "lockstep", "mountPath": "/lockstep"}, {"name": "lockstep-run", "mountPath": "/lockstep-run"}])
    );
    let program = "/lockstep-run/usr/bin/lockstep-run";
    assert_eq!(
        trainer["command"],
        json!([program, "exec", "--dir", "/lockstep", "--", "torchrun"])
    );
    assert_eq!(
        trainer["startupProbe"]["exec"]["command"],
        json!([
            program,
            "probe",
            "startup",
            "--dir",
            "/lockstep",
            "--",
            "check"
        ])
    );
    let own = json!([{"name": "data"}]);
    let pod = mounted(json!({"initContainers": own, "containers": [container(&json!({}))]}));
    assert_eq!(pod["initContainers"][0]["name"], "lockstep-run");
    assert_eq!(
        pod["volumes"],
        json!([{"name": "lockstep", "emptyDir": {}}])
    );
}

#[test]
fn the_command_is_started_by_the_supervisor_and_its_arguments_keep_their_meaning() {
    let pod = supervised(json!({"containers": [container(&json!({}))]}));
    let trainer = &pod["containers"][0];
    assert_eq!(
        trainer["command"],
        json!(["/lockstep/lockstep-run", "exec", "--", "torchrun"])
    );
    assert_eq!(trainer["args"], json!(["train.py", "--id", "$(X)"]));
    assert_eq!(
        trainer["volumeMounts"],
        json!([{"name": "lockstep", "mountPath": "/lockstep"}])
    );
    assert_eq!(
        pod["volumes"],
        json!([{"name": "lockstep", "emptyDir": {}}])
    );
}

#[test]
fn the_command_has_the_policy_for_shared_memory() {
    for (policy, options) in [
        (SharedMemoryPolicy::CleanKnown, json!(["--"])),
        (
            SharedMemoryPolicy::CleanAll,
            json!(["--clean-shm", "all", "--"]),
        ),
        (
            SharedMemoryPolicy::Keep,
            json!(["--clean-shm", "none", "--"]),
        ),
    ] {
        let policy = InPlace {
            shared_memory: policy,
            ..InPlace::default()
        };
        let pod = json!({"containers": [container(&json!({}))]});
        let pod = supervised_as(pod, Delivery::Copied, &policy);
        let command = pod["containers"][0]["command"].as_array().unwrap();
        let end = command.iter().position(|w| w == "--").unwrap();
        assert_eq!(json!(command[2..=end]), options);
    }
}

#[test]
fn the_command_has_the_stop_signal_and_the_grace_of_survivors() {
    let policy = InPlace {
        stop_grace_seconds: 20,
        ..InPlace::default()
    };
    let own = container(&json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
    let pod = supervised_as(json!({"containers": [own]}), Delivery::Copied, &policy);
    let command = pod["containers"][0]["command"].as_array().unwrap();
    let options = json!(["--stop-signal", "SIGUSR1", "--stop-grace", "20", "--"]);
    assert_eq!(json!(command[2..7]), options);
}

#[test]
fn the_supervisor_reads_the_messages_where_the_kubelet_does() {
    let own = container(&json!({"terminationMessagePath": "/tmp/message"}));
    let pod = supervised(json!({"containers": [own]}));
    let command = pod["containers"][0]["command"].as_array().unwrap();
    assert_eq!(
        command[2..4],
        [json!("--termination-log"), json!("/tmp/message")]
    );
}

#[test]
fn the_supervisor_is_copied_before_anything_else_starts() {
    let limits = json!({"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "8"});
    let asks = json!({"resources": {"limits": limits, "requests": limits}});
    let pod =
        supervised(json!({"initContainers": [{"name": "data"}], "containers": [container(&asks)]}));
    let names: Vec<&Value> = pod["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(names, ["lockstep-run", "data"]);
    let init = &pod["initContainers"][0];
    assert_eq!(init["args"], json!(["init", "/lockstep"]));
    assert_eq!(
        init["resources"]["limits"], init["resources"]["requests"],
        "Guaranteed stays Guaranteed"
    );
    assert_eq!(init["securityContext"]["runAsNonRoot"], true);
}

#[test]
fn the_copy_container_reads_the_shared_memory_volume_of_the_training_container() {
    let copy = |mount: Value| {
        let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}, mount]});
        let pod = supervised(json!({"containers": [container(&mounts)]}));
        pod["initContainers"][0]["volumeMounts"].clone()
    };
    let own = json!({"name": "lockstep", "mountPath": "/lockstep"});
    let shared =
        json!({"name": "shm", "mountPath": "/dev/shm/", "mountPropagation": "Bidirectional"});
    let read = json!({"name": "shm", "mountPath": "/dev/shm/", "readOnly": true});
    assert_eq!(copy(shared), json!([own, read]));
    for mut part in [json!({"subPath": "shm"}), json!({"subPathExpr": "$(RANK)"})] {
        part["name"] = "scratch".into();
        part["mountPath"] = "/dev/shm".into();
        assert_eq!(copy(part), json!([own]));
    }
}

#[test]
fn the_init_container_requests_cpu_and_memory_like_the_training_container() {
    let class = |container: Value| {
        let pod = supervised(json!({"containers": [container]}));
        pod["initContainers"][0]["resources"].clone()
    };
    assert_eq!(class(container(&json!({}))), Value::Null);
    let asks = json!({"resources": {"limits": {"nvidia.com/gpu": "8"}}});
    assert_eq!(class(container(&asks)), Value::Null);
    let asks = json!({"resources": {"requests": {"cpu": "2", "memory": "64Mi"},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": "8"}}});
    assert_eq!(
        class(container(&asks)),
        json!({"requests": {"cpu": "2", "memory": "64Mi"}, "limits": {"memory": "1Gi"}})
    );
}

#[test]
fn variables_that_the_user_sets_are_kept_from_the_supervisor() {
    let env = json!([{"name": "MASTER_PORT", "value": "1"}, {"name": "OTHER", "value": "2"}]);
    let pod = supervised(json!({"containers": [container(&json!({"env": env}))]}));
    assert_eq!(
        pod["containers"][0]["command"],
        json!([
            "/lockstep/lockstep-run",
            "exec",
            "--keep-env",
            "MASTER_PORT",
            "--",
            "torchrun"
        ])
    );
}

#[test]
fn probes_that_are_commands_are_answered_while_the_container_is_held() {
    let probe = json!({"exec": {"command": ["check", "-v"]}, "periodSeconds": 7});
    let pod = supervised(
        json!({"containers": [container(&json!({"livenessProbe": probe, "readinessProbe": probe}))]}),
    );
    let trainer = &pod["containers"][0];
    assert_eq!(
        trainer["livenessProbe"],
        json!({"exec": {"command": ["/lockstep/lockstep-run", "probe", "liveness", "--", "check", "-v"]}, "periodSeconds": 7})
    );
    assert_eq!(trainer["readinessProbe"]["exec"]["command"][2], "readiness");
}

#[test]
fn liveness_waits_after_each_start_as_long_as_at_the_first() {
    let check = |mut extra: Value| {
        extra["exec"] = json!({"command": ["check"]});
        extra
    };
    let liveness = |startup: Value| {
        let probes = json!({"livenessProbe": check(json!({"initialDelaySeconds": 5})), "startupProbe": startup});
        let pod = supervised(json!({"containers": [container(&probes)]}));
        pod["containers"][0]["livenessProbe"]["exec"]["command"][4].clone()
    };
    assert_eq!(liveness(Value::Null), "5");
    assert_eq!(liveness(check(json!({}))), "35");
    let long = json!({"initialDelaySeconds": 1, "periodSeconds": 20, "failureThreshold": 60});
    assert_eq!(liveness(check(long)), "1206");
}

#[test]
fn only_containers_whose_entrypoint_is_known_and_that_can_be_held_have_a_supervisor() {
    let settings = LifecycleSettings::default();
    let of = |pod: &Value| obstacle(&settings, &group(pod));
    let why = |extra: Value| of(&json!({"containers": [container(&extra)]}));
    assert_eq!(why(json!({})), None);
    assert_eq!(
        why(json!({"livenessProbe": {"exec": {"command": ["c"]}}})),
        None
    );
    assert_eq!(
        why(json!({"readinessProbe": {"httpGet": {"port": 80}}})),
        None
    );
    for (extra, word) in [
        (json!({"command": []}), "no command"),
        (
            json!({"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}),
            "postStart",
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGRTMIN+3"}}),
            "stopSignal",
        ),
        (json!({"tty": true}), "terminal"),
        (json!({"stdin": true}), "terminal"),
        (
            json!({"livenessProbe": {"httpGet": {"port": 80}}}),
            "liveness",
        ),
        (json!({"startupProbe": {"grpc": {"port": 80}}}), "startup"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/lockstep/"}]}),
            "folder",
        ),
    ] {
        let said = why(extra.clone());
        assert!(said.is_some_and(|s| s.contains(word)), "{extra}: {said:?}");
    }
    let taken = json!({"volumes": [{"name": "lockstep", "emptyDir": {}}], "containers": [container(&json!({}))]});
    assert!(of(&taken).is_some());
}

#[test]
fn a_container_that_may_change_its_user_needs_the_capability_to_kill() {
    let why = |mut pod: Value, extra: &Value| {
        pod["containers"] = json!([container(extra)]);
        obstacle(&LifecycleSettings::default(), &group(&pod))
    };
    let capabilities = |drop: Value, add: Value| json!({"securityContext": {"capabilities": {"drop": drop, "add": add}}});
    let gosu = capabilities(json!(["ALL"]), json!(["SETUID", "SETGID"]));
    let without_kill = capabilities(json!(["KILL"]), json!([]));
    for extra in [&gosu, &without_kill] {
        let said = why(json!({}), extra);
        assert!(said.is_some_and(|s| s.contains("KILL")), "{extra}");
    }
    let none = capabilities(json!(["ALL"]), json!([]));
    let kill = capabilities(json!(["ALL"]), json!(["SETUID", "CAP_KILL"]));
    let mut privileged = gosu.clone();
    privileged["securityContext"]["privileged"] = json!(true);
    let mut user = gosu.clone();
    user["securityContext"]["runAsUser"] = json!(1000);
    for extra in [&none, &kill, &privileged, &user] {
        assert_eq!(why(json!({}), extra), None, "{extra}");
    }
    let not_root = json!({"securityContext": {"runAsNonRoot": true}});
    assert_eq!(why(not_root, &gosu), None);
}

#[test]
fn only_a_listed_runtime_class_can_have_a_supervisor() {
    let why = |settings: &LifecycleSettings, class: &str| {
        let pod = json!({"runtimeClassName": class, "containers": [container(&json!({}))]});
        obstacle(settings, &group(&pod))
    };
    let default = LifecycleSettings::default();
    assert!(why(&default, "kata").is_some_and(|w| w.contains("runtimeClassName")));
    assert_eq!(why(&default, "nvidia"), None);
    let listed = LifecycleSettings {
        supervisor_runtime_classes: vec!["kata".into()],
        ..default
    };
    assert_eq!(why(&listed, "kata"), None);
}

#[test]
fn a_workload_may_do_without_and_so_does_an_installation_without_the_image() {
    let group = group(&json!({"containers": [container(&json!({}))]}));
    let spec = |mode: &str| -> TrainingWorkloadSpec {
        serde_json::from_value(
            json!({"groups": [], "failurePolicy": {"inPlace": {"supervisor": mode}}}),
        )
        .unwrap()
    };
    let with = LifecycleSettings {
        supervisor_image: Some("i".into()),
        ..LifecycleSettings::default()
    };
    assert_eq!(supervisor_image(&with, &spec("Auto"), &group), Some("i"));
    assert_eq!(supervisor_image(&with, &spec("Never"), &group), None);
    assert_eq!(
        supervisor_image(&LifecycleSettings::default(), &spec("Auto"), &group),
        None
    );
}
