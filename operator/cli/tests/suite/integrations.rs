//! What `doctor` says about node autoscalers and Kueue.

use lockstep_api::scheduling::AutoscalerMode;
use lockstep_cli::doctor::{CheckLevel, Diagnosis, diagnose};
use lockstep_cli::doctor_facts::{
    AutoscalerFacts, FRAMEWORK, InstallFacts, KueueConfiguration, KueueFacts,
};
use serde_json::{Value, json};

use crate::doctoring::{found, healthy};
use crate::mistakes::{self, CONFIGS, Cluster, KUEUE, WORKLOADS, configured, doctor};
use crate::support::{matches_golden, now};

const QUEUES: &str = "/apis/kueue.x-k8s.io/v1beta2/localqueues";
const NAMESPACES: &str = "/api/v1/namespaces";

fn pods() -> AutoscalerFacts {
    AutoscalerFacts {
        mode: AutoscalerMode::Pods,
        namespace: "lockstep-autoscaler".into(),
        namespace_exists: Some(true),
        karpenter: true,
        lacks: Some(Vec::new()),
        ..AutoscalerFacts::default()
    }
}

fn requests() -> AutoscalerFacts {
    AutoscalerFacts {
        mode: AutoscalerMode::ProvisioningRequest,
        serves_requests: true,
        lacks: Some(Vec::new()),
        ..AutoscalerFacts::default()
    }
}

fn kueue() -> KueueFacts {
    KueueFacts {
        versions: vec!["v1beta2".into(), "v1beta1".into()],
        enabled: Some(true),
        configuration: Some(KueueConfiguration {
            knows_workloads: true,
            ..KueueConfiguration::default()
        }),
        lacks: Some(Vec::new()),
        queued: Some(2),
        missing_queues: Some(Vec::new()),
    }
}

/// The only check whose line the facts change.
fn line(check: &str, change: impl FnOnce(&mut InstallFacts)) -> Diagnosis {
    let mut facts = healthy();
    change(&mut facts);
    let mut diagnosis = diagnose(&facts, now());
    diagnosis.checks.retain(|c| c.check == check);
    diagnosis
}

#[test]
fn an_autoscaler_that_the_mode_cannot_reach_is_a_warning() {
    let cases: [(AutoscalerFacts, CheckLevel, &str); 9] = [
        (pods(), CheckLevel::Ok, "Karpenter is installed"),
        (requests(), CheckLevel::Ok, "by ProvisioningRequests"),
        (AutoscalerFacts::default(), CheckLevel::Ok, "off"),
        (
            AutoscalerFacts {
                mode: AutoscalerMode::Off,
                ..pods()
            },
            CheckLevel::Ok,
            "off: waiting gangs demand no nodes",
        ),
        (
            AutoscalerFacts {
                karpenter: false,
                ..pods()
            },
            CheckLevel::Ok,
            "Karpenter is not installed",
        ),
        (
            AutoscalerFacts {
                namespace_exists: Some(false),
                ..pods()
            },
            CheckLevel::Warn,
            "namespace lockstep-autoscaler does not exist: apply config/components/signal-pods",
        ),
        (
            AutoscalerFacts {
                namespace_exists: None,
                ..pods()
            },
            CheckLevel::Warn,
            "skipped: no permission to read namespaces",
        ),
        (
            AutoscalerFacts {
                serves_requests: false,
                ..requests()
            },
            CheckLevel::Warn,
            "the API server serves no ProvisioningRequests",
        ),
        (
            AutoscalerFacts {
                lacks: Some(vec!["create podtemplates".into()]),
                ..requests()
            },
            CheckLevel::Warn,
            "may not create podtemplates: apply config/components/provisioning-requests",
        ),
    ];
    for (facts, level, words) in cases {
        let (is, message) = found("autoscaler", |f| f.autoscaler = Some(facts));
        assert_eq!(is, level, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let (level, message) = found("autoscaler", |f| f.autoscaler = None);
    assert_eq!(level, CheckLevel::Warn);
    assert!(message.contains("the manager's configuration"), "{message}");
}

#[test]
fn kueue_that_cannot_admit_fails_and_what_it_ignores_is_a_warning() {
    let configuration = kueue().configuration.unwrap();
    let with = |change: fn(&mut KueueFacts)| {
        let mut facts = kueue();
        change(&mut facts);
        facts
    };
    let ready_within = |seconds| KueueFacts {
        configuration: Some(KueueConfiguration {
            pods_ready_seconds: Some(seconds),
            ..configuration.clone()
        }),
        ..kueue()
    };
    let cases: [(KueueFacts, CheckLevel, &str); 10] = [
        (kueue(), CheckLevel::Ok, "wait for Kueue (v1beta2)"),
        (
            with(|k| k.versions = vec!["v1beta1".into()]),
            CheckLevel::Ok,
            "wait for Kueue (v1beta1)",
        ),
        (
            with(|k| k.versions = vec!["v1".into()]),
            CheckLevel::Fail,
            "serves neither v1beta2 nor v1beta1 of kueue.x-k8s.io",
        ),
        (
            with(|k| k.versions.clear()),
            CheckLevel::Fail,
            "workloads with a queue do not start",
        ),
        (
            with(|k| k.lacks = Some(vec!["patch workloads/status.kueue.x-k8s.io".into()])),
            CheckLevel::Fail,
            "may not patch workloads/status.kueue.x-k8s.io: apply config/components/kueue",
        ),
        (
            with(|k| k.missing_queues = Some(vec!["ml/gpus".into()])),
            CheckLevel::Warn,
            "no such LocalQueue: ml/gpus",
        ),
        (
            with(|k| k.configuration = None),
            CheckLevel::Warn,
            FRAMEWORK,
        ),
        (
            with(|k| k.configuration = Some(KueueConfiguration::default())),
            CheckLevel::Warn,
            "Kueue may manage members as single pods",
        ),
        (
            ready_within(300),
            CheckLevel::Warn,
            "whose pods are not ready within 5 min",
        ),
        (ready_within(3600), CheckLevel::Ok, "wait for Kueue"),
    ];
    for (facts, level, words) in cases {
        let (is, message) = found("kueue", |f| f.kueue = facts);
        assert_eq!(is, level, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn workloads_with_a_queue_are_a_warning_while_kueue_is_not_enabled() {
    for (queued, level, words) in [
        (2, CheckLevel::Warn, "2 workloads with the label"),
        (0, CheckLevel::Ok, "does not manage jobs without a queue"),
    ] {
        let (is, message) = found("kueue", |f| {
            f.kueue = KueueFacts {
                enabled: Some(false),
                queued: Some(queued),
                ..kueue()
            };
        });
        assert_eq!(is, level, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn the_screens_have_a_line_for_each_fault_of_an_integration() {
    let autoscaler = |facts| line("autoscaler", |f| f.autoscaler = Some(facts));
    let of_kueue = |facts| line("kueue", |f| f.kueue = facts);
    let diagnoses = [
        autoscaler(AutoscalerFacts {
            serves_requests: false,
            ..requests()
        }),
        autoscaler(AutoscalerFacts {
            namespace_exists: Some(false),
            ..pods()
        }),
        of_kueue(kueue()),
        of_kueue(KueueFacts {
            lacks: Some(vec!["watch workloads.kueue.x-k8s.io".into()]),
            ..kueue()
        }),
        of_kueue(KueueFacts {
            configuration: Some(KueueConfiguration::default()),
            ..kueue()
        }),
        of_kueue(KueueFacts {
            enabled: Some(false),
            ..kueue()
        }),
    ];
    let views: Vec<&Diagnosis> = diagnoses.iter().collect();
    matches_golden("doctor-integrations", &views);
}

/// A cluster whose manager has this configuration.
fn with(configuration: &str) -> Cluster {
    let mut cluster = mistakes::healthy();
    let configuration = vec![configured(configuration)];
    cluster.objects.insert(CONFIGS, configuration);
    cluster
}

/// The line of a check.
fn says(check: &str, cluster: Cluster) -> (String, String) {
    doctor(cluster).0[check].clone()
}

#[test]
fn the_mode_of_the_autoscaler_is_read_from_the_configuration() {
    let requests = || with("autoscaler: {mode: ProvisioningRequest}");
    let (level, message) = says("autoscaler", requests());
    assert!(
        level == "Warn" && message.contains("serves no"),
        "{message}"
    );
    let mut served = requests();
    let kinds = vec!["provisioningrequests"];
    served.groups.insert("autoscaling.x-k8s.io", ("v1", kinds));
    let (level, message) = says("autoscaler", served.clone());
    assert_eq!(level, "Ok", "{message}");
    served.manager_may_not = "podtemplates";
    let (level, message) = says("autoscaler", served);
    assert!(
        level == "Warn" && message.contains("may not create podtemplates"),
        "{message}"
    );

    let mut pods = with("autoscaler: {mode: Pods, namespace: signals}");
    let (level, message) = says("autoscaler", pods.clone());
    assert!(
        level == "Warn" && message.contains("namespace signals does not exist"),
        "{message}"
    );
    let namespace = json!({"metadata": {"name": "signals"}});
    pods.objects.insert(NAMESPACES, vec![namespace]);
    pods.groups
        .insert("karpenter.sh", ("v1", vec!["nodepools"]));
    let (level, message) = says("autoscaler", pods.clone());
    let expected = "signal pods in signals; Karpenter is installed";
    assert_eq!((&*level, &*message), ("Ok", expected));
    pods.forbidden.push("/api/v1/namespaces/signals");
    let (_, message) = says("autoscaler", pods);
    assert!(
        message.contains("no permission to read namespaces"),
        "{message}"
    );
}

fn workload(namespace: &str, queue: &str) -> Value {
    json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": "w", "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"groups": [{"name": "g", "template": {"spec": {"containers": [{"name": "t", "image": "i"}]}}}]}})
}

#[test]
fn queues_of_workloads_and_the_configuration_of_kueue_are_read() {
    let kueue = |enabled: bool, configuration: &str| {
        let mut cluster = with(&format!("kueue: {{enabled: {enabled}}}"));
        let kinds = vec!["localqueues", "workloads"];
        cluster.groups.insert("kueue.x-k8s.io", ("v1beta2", kinds));
        let workloads = vec![workload("ml", "gpus"), workload("vision", "gpus")];
        cluster.objects.insert(WORKLOADS, workloads);
        let queue = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "gpus", "namespace": "ml"}});
        cluster.objects.insert(QUEUES, vec![queue]);
        let map = json!({"metadata": {"name": "kueue-manager-config"},
            "data": {"controller_manager_config.yaml": configuration}});
        cluster.objects.insert(KUEUE, vec![map]);
        cluster
    };
    let knows = format!("integrations: {{externalFrameworks: [{FRAMEWORK}]}}");
    let (level, message) = says("kueue", kueue(true, &knows));
    let expected = "no such LocalQueue: vision/gpus;";
    assert!(level == "Warn" && message.contains(expected), "{message}");
    let (_, message) = says("kueue", kueue(false, &knows));
    assert!(message.contains("2 workloads with the label"), "{message}");

    let here = |configuration: &str| {
        let mut cluster = kueue(true, configuration);
        cluster.objects.get_mut(WORKLOADS).unwrap().pop();
        says("kueue", cluster)
    };
    assert_eq!(here(&knows).0, "Ok");
    let (_, message) = here("integrations: {frameworks: [pod]}");
    assert!(message.contains("single pods"), "{message}");
    for (wait, words) in [
        ("waitForPodsReady: {timeout: 10m}", "within 10 min"),
        (
            "waitForPodsReady: {timeout: 2h}",
            "wait for Kueue (v1beta2)",
        ),
        (
            "apiVersion: config.kueue.x-k8s.io/v1beta1\nwaitForPodsReady: {enable: true}",
            "within 5 min",
        ),
        (
            "apiVersion: config.kueue.x-k8s.io/v1beta1\nwaitForPodsReady: {enable: false}",
            "wait for Kueue (v1beta2)",
        ),
    ] {
        let (_, message) = here(&format!("{knows}\n{wait}"));
        assert!(message.contains(words), "{wait}: {message}");
    }
    let mut denied = kueue(true, &knows);
    denied.forbidden.push(QUEUES);
    assert_eq!(says("kueue", denied.clone()).0, "Ok");
    denied.manager_may_not = "resourceflavors";
    let (level, message) = says("kueue", denied);
    let expected = "may not watch resourceflavors.kueue.x-k8s.io";
    assert!(level == "Fail" && message.contains(expected), "{message}");
    let (level, message) = says("kueue", with("kueue: {enabled: true}"));
    assert!(
        level == "Fail" && message.contains("serves neither"),
        "{message}"
    );
}
