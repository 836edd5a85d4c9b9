//! What shows node demand to an autoscaler: signal pods and requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use lockstep_api::TrainingWorkload;
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::names::{labels, provisioning_request_name, signal_pod_name};
use lockstep_api::provisioning::SIGNAL_SCHEDULER;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_lifecycle::provisioning::{
    AdmittedTemplate, DemandingGang, HeldObject, ProvisioningAction, ProvisioningPlan,
    ProvisioningSettings, ProvisioningView, SignalPod, SignalStage, plan,
};
use lockstep_lifecycle::view::WorkloadId;
use serde_json::{Value, json};

fn settings(mode: AutoscalerMode, max_pods: usize) -> ProvisioningSettings {
    ProvisioningSettings {
        mode,
        namespace: "signals".into(),
        max_pods,
        class: "atomic".into(),
        parameters: [("a".to_owned(), "1".to_owned())].into(),
    }
}

fn since() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).unwrap()
}

fn workload(name: &str, more: &Value) -> Arc<TrainingWorkload> {
    let template = json!({"metadata": {"labels": {"app": name, "kueue.x-k8s.io/queue-name": "q"}},
        "spec": {"nodeSelector": {"pool": "gpu"}, "serviceAccountName": "secret", "hostNetwork": true,
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "token", "emptyDir": {}}],
            "initContainers": [{"name": "side", "image": "side", "restartPolicy": "Always",
                "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{"name": "c", "image": "train", "command": ["run"],
                "env": [{"name": "SECRET", "value": "s"}],
                "ports": [{"containerPort": 1, "hostPort": 1}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    let mut object = json!({"metadata": {"name": name, "namespace": "ml", "uid": format!("w-{name}")},
        "spec": {"priorityClassName": "high", "groups": [
            {"name": "g", "replicas": 2, "template": template},
            {"name": "h", "replicas": 1, "template": template}]}});
    if let Some(annotations) = more.as_object() {
        object["metadata"]["annotations"] = json!(annotations);
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn gang_of(workload: Arc<TrainingWorkload>, members: &[(&str, i32)]) -> DemandingGang {
    let id = WorkloadId::read(&workload).unwrap();
    DemandingGang {
        pod_group: format!("{}-pg", id.name),
        id,
        workload,
        number: 1,
        since: since(),
        priority: 0,
        queued_at: None,
        placed: false,
        members: members
            .iter()
            .map(|(group, replica)| Member::new(*group, *replica, 0))
            .collect(),
        admitted: BTreeMap::new(),
    }
}

fn gang(name: &str) -> DemandingGang {
    gang_of(workload(name, &json!({})), &[("g", 0), ("g", 1), ("h", 0)])
}

/// Name of the request for the first try of gang `a`.
fn request_name() -> String {
    provisioning_request_name("a-pg", 1, since())
}

fn view(gangs: Vec<DemandingGang>) -> ProvisioningView {
    ProvisioningView {
        gangs,
        serves_requests: true,
        ..ProvisioningView::default()
    }
}

fn signal(name: &str) -> SignalPod {
    SignalPod {
        uid: format!("uid-{name}").parse().unwrap(),
        ours: true,
        stage: SignalStage::Hidden,
    }
}

fn held(ours: bool) -> HeldObject {
    HeldObject {
        uid: "uid".parse().unwrap(),
        ours,
        terminating: false,
    }
}

/// What the API server and the index do with the plan.
fn apply(view: &mut ProvisioningView, plan: ProvisioningPlan) -> Vec<String> {
    let later = plan.creations.into_iter().flat_map(|(_, actions)| actions);
    let actions: Vec<_> = plan.first.into_iter().chain(later).collect();
    let mut done = Vec::new();
    for action in actions {
        done.push(match action {
            ProvisioningAction::DeletePod { name, uid, .. } => {
                assert_eq!(view.pods.remove(&name).unwrap().uid, uid);
                format!("- {name}")
            }
            ProvisioningAction::ShowPod { name, uid } => {
                let pod = view.pods.get_mut(&name).unwrap();
                assert_eq!(pod.uid, uid);
                pod.stage = SignalStage::Shown;
                format!("! {name}")
            }
            ProvisioningAction::CreatePod(pod) => {
                let name = pod.metadata.name.unwrap();
                assert!(view.pods.insert(name.clone(), signal(&name)).is_none());
                format!("+ {name}")
            }
            ProvisioningAction::DeleteRequest { key, .. } => {
                view.requests.remove(&key).unwrap();
                format!("- {key}")
            }
            ProvisioningAction::DeleteTemplate { key, .. } => {
                view.templates.remove(&key).unwrap();
                format!("- {key}")
            }
            ProvisioningAction::CreateTemplate(template) => {
                let key = Key::new("ml", template.metadata.name.unwrap());
                view.templates.insert(key.clone(), held(true));
                format!("+ {key}")
            }
            ProvisioningAction::CreateRequest(request) => {
                let key = Key::new("ml", request.metadata.name.unwrap());
                view.requests.insert(key.clone(), held(true));
                format!("+ {key}")
            }
        });
    }
    done
}

fn signs(actions: &[String]) -> (usize, usize, usize) {
    let count = |sign: char| actions.iter().filter(|a| a.starts_with(sign)).count();
    (count('+'), count('!'), count('-'))
}

fn step(view: &mut ProvisioningView, settings: &ProvisioningSettings) -> Vec<String> {
    let planned = plan(view, settings);
    apply(view, planned)
}

/// Plans and applies until nothing is left to do.
fn settle(view: &mut ProvisioningView, settings: &ProvisioningSettings) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..10 {
        let done = step(view, settings);
        if done.is_empty() {
            return all;
        }
        all.extend(done);
    }
    panic!("it does not come to rest: {all:#?}")
}

const PODS: AutoscalerMode = AutoscalerMode::Pods;
const REQUESTS: AutoscalerMode = AutoscalerMode::ProvisioningRequest;

#[test]
fn the_pods_of_a_gang_are_shown_only_when_all_of_them_exist() {
    let settings = settings(PODS, 10);
    let mut view = view(vec![gang("a")]);
    let made = step(&mut view, &settings);
    assert_eq!(signs(&made), (3, 0, 0));
    let lost = view.pods.pop_first().unwrap();
    let again = step(&mut view, &settings);
    assert_eq!((signs(&again), &again[0][2..]), ((1, 0, 0), &*lost.0));
    let shown = step(&mut view, &settings);
    assert_eq!(signs(&shown), (0, 3, 0));
    assert_eq!(plan(&view, &settings), ProvisioningPlan::default());
}

#[test]
fn whole_gangs_are_shown_in_queue_order_up_to_the_most_pods() {
    let queued = |name, priority, minute| DemandingGang {
        priority,
        queued_at: Some(since() + TimeDelta::minutes(minute)),
        ..gang(name)
    };
    let mut one = gang_of(workload("one", &json!({})), &[("g", 0)]);
    one.queued_at = Some(since() + TimeDelta::minutes(9));
    let gangs = vec![
        queued("late", 1, 2),
        one,
        queued("early", 1, 1),
        queued("high", 2, 3),
    ];
    let named = |max_pods| {
        let mut view = view(gangs.clone());
        settle(&mut view, &settings(PODS, max_pods));
        let mut names: Vec<_> = view.pods.into_keys().collect();
        for name in &mut names {
            name.truncate(name.find('-').unwrap());
        }
        names.dedup();
        names.join(" ")
    };
    assert_eq!(named(3), "high");
    assert_eq!(named(5), "high");
    assert_eq!(named(6), "early high");
    assert_eq!(named(10), "early high late one");
    assert_eq!(named(2), "one", "a gang that never fits blocks no other");
}

#[test]
fn the_pod_of_a_bound_member_goes_and_the_others_stay() {
    let settings = settings(PODS, 10);
    let mut view = view(vec![gang("a")]);
    settle(&mut view, &settings);
    let bound = view.gangs[0].members.remove(1);
    let gone = settle(&mut view, &settings);
    let name = signal_pod_name("a", "w-a", &bound, 1, since());
    assert_eq!(gone, [format!("- {name}")]);
}

#[test]
fn all_objects_go_with_the_demand_of_each_mode_and_of_the_mode_before() {
    for mode in [PODS, REQUESTS] {
        let mut view = view(vec![gang("a"), gang("b")]);
        settle(&mut view, &settings(mode, 10));
        let objects =
            |view: &ProvisioningView| view.pods.len() + view.requests.len() + view.templates.len();
        assert_eq!(objects(&view), 6);
        view.gangs.pop();
        settle(&mut view, &settings(mode, 10));
        assert_eq!(objects(&view), 3);
        let other = if mode == PODS { REQUESTS } else { PODS };
        view.gangs.clear();
        settle(&mut view, &settings(other, 10));
        assert_eq!(objects(&view), 0);
    }
}

#[test]
fn another_try_has_other_objects_and_those_of_the_last_one_go() {
    for mode in [PODS, REQUESTS] {
        let settings = settings(mode, 3);
        let mut view = view(vec![gang("a")]);
        let before = settle(&mut view, &settings);
        view.gangs[0].number = 2;
        let after = settle(&mut view, &settings);
        assert_eq!(signs(&after), (3, signs(&before).1, 3), "{after:#?}");
        let names = |actions: &[String], sign| {
            let of = actions.iter().filter(|a| a.starts_with(sign));
            of.map(|a| a[2..].to_owned()).collect::<Vec<_>>()
        };
        assert!(
            names(&after, '+')
                .iter()
                .all(|n| !names(&before, '+').contains(n))
        );
        // The same number of a later demand.
        view.gangs[0].number = 1;
        view.gangs[0].since = since() + TimeDelta::seconds(1);
        let later = settle(&mut view, &settings);
        assert!(
            names(&later, '+')
                .iter()
                .all(|n| !names(&before, '+').contains(n))
        );
    }
}

#[test]
fn objects_of_others_are_left_alone_even_if_they_take_a_name() {
    let name = signal_pod_name("a", "w-a", &Member::new("g", 0, 0), 1, since());
    let foreign = SignalPod {
        ours: false,
        stage: SignalStage::Bound,
        ..signal("x")
    };
    let mut pods = view(vec![gang("a"), gang("b")]);
    for name in [&*name, "other"] {
        pods.pods.insert(name.to_owned(), foreign.clone());
    }
    let done = settle(&mut pods, &settings(PODS, 10));
    assert!(
        done.iter().all(|action| action.contains(" b-")),
        "{done:#?}"
    );
    let taken = plan(&pods, &settings(PODS, 10)).taken;
    assert_eq!(taken, [Key::new("signals", name)]);

    let request = Key::new("ml", request_name());
    let mut requests = view(vec![gang("a")]);
    requests.requests.insert(request.clone(), held(false));
    requests
        .requests
        .insert(Key::new("ml", "other"), held(false));
    requests
        .templates
        .insert(Key::new("ml", "other"), held(false));
    let plan = plan(&requests, &settings(REQUESTS, 10));
    assert_eq!(plan.taken, [request]);
    assert!(plan.first.is_empty() && plan.creations.is_empty());
}

#[test]
fn a_signal_pod_that_somebody_has_bound_ends_in_its_time_and_is_replaced_later() {
    let settings = settings(PODS, 10);
    let mut view = view(vec![gang("a")]);
    settle(&mut view, &settings);
    let name = view.pods.keys().next().unwrap().clone();
    let pod = view.pods.get_mut(&name).unwrap();
    pod.stage = SignalStage::Bound;
    let planned = plan(&view, &settings);
    let [
        ProvisioningAction::DeletePod {
            name: deleted,
            grace,
            ..
        },
    ] = &*planned.first
    else {
        panic!("{planned:?}")
    };
    assert_eq!((deleted, *grace), (&name, None));
    assert!(planned.creations.is_empty());
    view.pods.get_mut(&name).unwrap().stage = SignalStage::Terminating;
    assert_eq!(plan(&view, &settings), ProvisioningPlan::default());
    view.pods.remove(&name);
    let again = settle(&mut view, &settings);
    assert_eq!(again, [format!("+ {name}"), format!("! {name}")]);
}

#[test]
fn without_the_api_of_requests_no_pod_template_is_created() {
    let settings = settings(AutoscalerMode::ProvisioningRequest, 10);
    let mut view = view(vec![gang("a")]);
    view.serves_requests = false;
    assert_eq!(step(&mut view, &settings), [""; 0]);
    view.serves_requests = true;
    assert!(!step(&mut view, &settings).is_empty());
}

#[test]
fn a_placed_gang_keeps_its_objects_and_gets_no_new_ones() {
    for mode in [PODS, REQUESTS] {
        let settings = settings(mode, 10);
        let mut view = view(vec![gang("a")]);
        settle(&mut view, &settings);
        view.gangs[0].placed = true;
        assert_eq!(plan(&view, &settings), ProvisioningPlan::default());
        view.pods.pop_first();
        view.requests.clear();
        assert_eq!(plan(&view, &settings), ProvisioningPlan::default());
    }
}

fn created(view: &ProvisioningView, settings: &ProvisioningSettings) -> Vec<ProvisioningAction> {
    let mut all = plan(view, settings).creations;
    assert_eq!(all.len(), 1);
    all.pop().unwrap().1
}

#[test]
fn a_signal_pod_asks_for_the_node_of_its_member_and_has_nothing_else_of_it() {
    let created = created(&view(vec![gang("a")]), &settings(PODS, 10));
    let ProvisioningAction::CreatePod(pod) = &created[2] else {
        panic!("{created:?}")
    };
    let labels = json!({"app": "a", labels::WORKLOAD: "a", labels::WORKLOAD_UID: "w-a",
        labels::POD_GROUP: "a-pg", labels::GROUP: "h", labels::REPLICA: "0", labels::INDEX: "0"});
    assert_eq!(json!(pod.metadata.labels), labels);
    assert_eq!(pod.metadata.namespace.as_deref(), Some("signals"));
    assert_eq!(pod.metadata.owner_references, None);
    let mut spec = json!(pod.spec);
    for container in ["/containers/0", "/initContainers/0"] {
        let container = spec.pointer_mut(container).unwrap();
        let context = container["securityContext"].take();
        assert_eq!(context["runAsNonRoot"], true);
        container.as_object_mut().unwrap().remove("securityContext");
    }
    assert_eq!(
        spec,
        json!({"schedulerName": SIGNAL_SCHEDULER, "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia", "priorityClassName": "high",
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "initContainers": [{"name": "side", "image": "side", "restartPolicy": "Always",
                "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{"name": "c", "image": "train",
                "resources": {"limits": {"nvidia.com/gpu": "8"}}}]})
    );
}

#[test]
fn what_admission_adds_to_members_is_part_of_the_demand() {
    let spec: PodSpec = serde_json::from_value(json!({
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}},
            {"name": "mesh", "resources": {"requests": {"cpu": "2"}}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "example.com/quota"}]}))
    .unwrap();
    let mut gang = gang("a");
    let labels = [("mesh".to_owned(), "on".to_owned())].into();
    gang.admitted
        .insert("g".into(), AdmittedTemplate { labels, spec });
    let created = created(&view(vec![gang]), &settings(PODS, 10));
    let ProvisioningAction::CreatePod(pod) = &created[0] else {
        panic!("{created:?}")
    };
    let spec = json!(pod.spec);
    assert_eq!(spec["containers"][1]["image"], "train");
    assert_eq!(spec["containers"][1]["resources"]["requests"]["cpu"], "2");
    assert_eq!(spec["tolerations"][0]["key"], "nvidia.com/gpu");
    assert_eq!(spec["schedulingGates"], Value::Null);
    assert_eq!(json!(pod.metadata.labels)["mesh"], "on");
}

#[test]
fn a_request_follows_its_templates_and_counts_the_members_of_each_group() {
    let settings = settings(REQUESTS, 1);
    let annotations = json!({"training.lockstep.dev/provisioning-class": "queued",
        "provreq.training.lockstep.dev/maxRunDurationSeconds": "600", "other": "x"});
    let members = [("g", 0), ("g", 1), ("h", 0)];
    let mut view = view(vec![gang_of(workload("a", &annotations), &members)]);
    let templates = created(&view, &settings);
    let [
        ProvisioningAction::CreateTemplate(g),
        ProvisioningAction::CreateTemplate(_),
    ] = &*templates
    else {
        panic!("{templates:?}")
    };
    let spec = json!(g.template.as_ref().unwrap().spec);
    assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(spec["containers"][0]["env"], Value::Null);
    step(&mut view, &settings);
    let requests = created(&view, &settings);
    let [ProvisioningAction::CreateRequest(request)] = &*requests else {
        panic!("{requests:?}")
    };
    let name = request_name();
    assert_eq!(
        json!(request.spec),
        json!({"provisioningClassName": "queued",
            "parameters": {"a": "1", "maxRunDurationSeconds": "600"},
            "podSets": [{"podTemplateRef": {"name": format!("{name}-g")}, "count": 2},
                {"podTemplateRef": {"name": format!("{name}-h")}, "count": 1}]})
    );
    let owner = &request.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&*owner.uid, owner.controller), ("w-a", Some(true)));
    assert_eq!(
        g.metadata.owner_references,
        request.metadata.owner_references
    );
}

#[test]
fn a_request_keeps_its_templates_while_members_are_bound_one_by_one() {
    let settings = settings(REQUESTS, 1);
    let mut view = view(vec![gang("a")]);
    settle(&mut view, &settings);
    for _ in 0..3 {
        view.gangs[0].members.pop();
        assert_eq!(plan(&view, &settings), ProvisioningPlan::default());
    }
}
