//! What conversions mean: policies on two levels, names, other objects, plugins, refusals.

use lockstep_convert::yaml;
use serde_json::{Value, json};

use crate::converting::{converted, refusal};

const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{name: c, image: i, command: [c]}]}}}\n";

/// The only workload of a conversion, and its comments.
fn workload(text: &str) -> (Value, String) {
    let mut documents = converted(text).unwrap();
    documents.retain(|d| d.object["kind"] == "TrainingWorkload");
    assert_eq!(documents.len(), 1);
    let document = documents.remove(0);
    let notes: Vec<String> = document.notes.into_iter().map(|n| n.text).collect();
    (document.object, notes.join("\n"))
}

/// A JobSet of one group `w` with a pod failure policy and a failure policy.
fn jobset(backoff: i64, rule: &str, policy: &str) -> String {
    format!(
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: s}}\nspec:\n  failurePolicy: {{{policy}}}\n  replicatedJobs:\n  - name: w\n    template:\n      spec:\n        backoffLimit: {backoff}\n        podFailurePolicy: {{rules: [{rule}]}}\n        template: {{spec: {{containers: [{{name: c, image: i, command: [c]}}]}}}}"
    )
}

#[test]
fn a_failed_job_does_what_the_policy_of_its_jobset_says() {
    let drained = "{action: FailJob, onPodConditions: [{type: DisruptionTarget}]}";
    let by_rule = "onJobFailureReasons: [PodFailurePolicy]";
    let cases = [
        ("maxRestarts: 0".to_owned(), "FailWorkload", None),
        ("maxRestarts: 2".to_owned(), "RestartGang", None),
        (
            format!("maxRestarts: 0, rules: [{{action: RestartJobSetAndIgnoreMaxRestarts, {by_rule}}}]"),
            "RestartGang",
            Some(false),
        ),
        (format!("maxRestarts: 2, rules: [{{action: FailJobSet, {by_rule}}}]"), "FailWorkload", None),
        (
            format!("maxRestarts: 2, rules: [{{action: FailJobSet, {by_rule}, targetReplicatedJobs: [other]}}]"),
            "RestartGang",
            None,
        ),
        (
            "maxRestarts: 0, rules: [{action: RestartJob, onJobFailureReasons: [BackoffLimitExceeded]}, {action: RestartJobSet}]".to_owned(),
            "RestartGang",
            None,
        ),
    ];
    for (policy, action, counted) in cases {
        let (object, notes) = workload(&jobset(0, drained, &policy));
        let rule = &object["spec"]["failurePolicy"]["rules"][0];
        assert_eq!(rule["action"], action, "{policy}");
        assert_eq!(rule["counted"].as_bool(), counted, "{policy}");
        assert_eq!(
            rule["match"]["podConditions"][0]["type"],
            "DisruptionTarget"
        );
        let fails = action == "FailWorkload";
        assert_eq!(
            notes.contains("such as that of a drain, fails the workload for good"),
            fails
        );
    }
}

#[test]
fn a_rule_that_fails_a_jobset_spares_evictions_that_its_jobs_tolerate() {
    let policy = "maxRestarts: 1, rules: [{name: all, action: FailJobSet}]";
    let exit = "{action: Count, onExitCodes: {operator: In, values: [3]}}";
    let (object, _) = workload(&jobset(6, exit, policy));
    let rules = &object["spec"]["failurePolicy"]["rules"];
    assert_eq!(rules[1]["name"], "all-disruptions");
    assert_eq!(rules[1]["action"], "RestartGang");
    assert_eq!(rules[2]["action"], "FailWorkload");
    let (object, notes) = workload(&jobset(0, exit, policy));
    assert_eq!(
        object["spec"]["failurePolicy"]["rules"][1]["action"],
        "FailWorkload"
    );
    assert!(
        notes.contains("an eviction, such as that of a drain, fails the workload, too"),
        "{notes}"
    );
}

#[test]
fn generated_names_of_one_file_become_different_names() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: run-}\nspec: {template: {spec: {containers: [{name: c, image: i, command: [c]}]}}}\n";
    let documents = converted(&format!("{job}---\n{job}")).unwrap();
    let names: Vec<&Value> = documents
        .iter()
        .map(|d| &d.object["metadata"]["name"])
        .collect();
    assert_eq!(names, ["run", "run-2"]);
    assert!(
        documents[0].notes[0]
            .text
            .starts_with("metadata.generateName: run-: a name is derived")
    );
}

#[test]
fn objects_that_are_no_jobs_stay_with_a_comment() {
    let others = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: etcd}\n---\napiVersion: kueue.x-k8s.io/v1beta1\nkind: LocalQueue\nmetadata: {name: q}\n";
    let documents = converted(&format!("{JOB}{others}")).unwrap();
    let notes = |n: usize| {
        documents[n]
            .notes
            .iter()
            .map(|n| n.text.as_str())
            .collect::<String>()
    };
    assert_eq!(
        notes(1),
        "Deployment etcd: kept as it is. Check whether the workload still needs it."
    );
    assert_eq!(
        notes(2),
        "LocalQueue q: kept as it is. Lockstep does not read it: delete it, unless other jobs need it."
    );
    let written = yaml::write(&documents).unwrap();
    assert!(
        written.contains("---\n# Deployment etcd: kept as it is."),
        "{written}"
    );
    for job in [
        "batch/v1\nkind: CronJob",
        "kubeflow.org/v1\nkind: PaddleJob",
        "jobset.x-k8s.io/v1alpha1\nkind: JobSet",
    ] {
        let said = refusal(&format!("apiVersion: {job}\nmetadata: {{name: a}}"));
        assert!(
            said.contains("is not supported: write its TrainingWorkload by hand"),
            "{said}"
        );
    }
}

#[test]
fn an_empty_list_enables_a_plugin_of_volcano() {
    let job = |plugin: &str| {
        format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: j}}\nspec: {{minAvailable: 0, plugins: {{{plugin}: []}}, tasks: [{{name: w, replicas: 2, template: {{spec: {{containers: [{{name: c, image: i, command: [c]}}]}}}}}}]}}"
        )
    };
    let said = refusal(&job("ray"));
    assert!(
        said.contains("spec.plugins.ray: Ray needs a head"),
        "{said}"
    );
    let (object, notes) = workload(&job("hcclrank"));
    assert!(
        notes.contains("spec.plugins.hcclrank: unknown plugin"),
        "{notes}"
    );
    assert!(object["spec"].get("scheduling").is_none());
}

#[test]
fn what_the_api_server_refuses_is_refused_or_named() {
    let job = |tasks: &str| {
        format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: j}}\nspec: {{tasks: [{tasks}]}}"
        )
    };
    let task = |more: &str| {
        format!(
            "{{name: w, replicas: 1, template: {{spec: {{{more}containers: [{{name: c, image: i, command: [c]}}]}}}}}}"
        )
    };
    let said = refusal(&job(&[task(""), task("")].join(", ")));
    assert!(
        said.contains("spec.groups: name \"w\" occurs twice"),
        "{said}"
    );
    let said = refusal(&job(&task("")).replace("tasks:", "ttlSecondsAfterFinished: -1, tasks:"));
    assert!(
        said.contains("spec.ttlSecondsAfterFinished: -1 is below 0"),
        "{said}"
    );
    let (_, notes) = workload(&job(&task("priorityClass: high, ")));
    assert!(
        notes.contains("spec.groups[0].template.spec.priorityClass: not a field of the API"),
        "{notes}"
    );
}

#[test]
fn comments_of_values_with_line_breaks_stay_on_their_line() {
    let text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec: {strange: \"a\\nspec: {}\", pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: c, image: i, command: [c]}]}}}}}";
    let documents = converted(text).unwrap();
    let written = yaml::write(&documents).unwrap();
    assert!(
        written.contains("# spec.strange: a spec: {}: unknown field"),
        "{written}"
    );
}

/// A JobSet of workers with an annotation of Kueue, and of a driver.
fn placed(annotation: &str, replicas: usize, drivers: usize) -> (Value, String) {
    let job = |name: &str, replicas: usize, pods: usize, annotations: &str| {
        format!(
            "  - {{name: {name}, replicas: {replicas}, template: {{spec: {{parallelism: {pods}, completions: {pods}, template: {{metadata: {{annotations: {{{annotations}}}}}, spec: {{containers: [{{name: c, image: i, command: [c]}}]}}}}}}}}}}\n"
        )
    };
    let annotation = format!("kueue.x-k8s.io/podset-{annotation}");
    let (object, notes) = workload(&format!(
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: s}}\nspec:\n  replicatedJobs:\n{}{}",
        job("w", replicas, 4, &annotation),
        job("d", 1, drivers, ""),
    ));
    assert!(!object.to_string().contains("kueue"), "{object}");
    (
        object["spec"]["scheduling"]["topology"]["levels"].clone(),
        notes,
    )
}

#[test]
fn topology_of_kueue_becomes_levels() {
    let stricter = "members of other groups are placed in one domain, too";
    let (levels, notes) = placed("required-topology: rack", 1, 1);
    assert_eq!(levels, json!([{"key": "rack", "scope": "Replica"}]));
    assert!(!notes.contains(stricter), "{notes}");
    let (levels, notes) = placed("preferred-topology: rack", 2, 1);
    assert_eq!(
        levels,
        json!([{"key": "rack", "mode": "Preferred", "scope": "Gang"}])
    );
    assert!(notes.contains(stricter), "{notes}");
    let (levels, _) = placed(
        "slice-required-topology: rack, kueue.x-k8s.io/podset-slice-size: \"4\"",
        2,
        1,
    );
    assert_eq!(levels, json!([{"key": "rack", "scope": "Replica"}]));
    let (levels, notes) = placed(
        "slice-required-topology: rack, kueue.x-k8s.io/podset-slice-size: \"2\"",
        2,
        1,
    );
    assert_eq!(levels, Value::Null);
    assert!(
        notes.contains("Give each replica as many members as a slice has"),
        "{notes}"
    );
    assert_eq!(
        placed("unconstrained-topology: \"true\"", 2, 1).0,
        Value::Null
    );
}

#[test]
fn variables_of_a_shell_are_named_where_nothing_replaces_them() {
    let cases = [
        (
            JOB.replace("name: j", "name: $NAME"),
            "metadata.name: \"$NAME\"",
        ),
        (
            JOB.replace("image: i", "image: \"r/${IMAGE}:1\""),
            "spec.template.spec.containers[0].image: \"r/${IMAGE}:1\"",
        ),
        (
            JOB.replace(
                "image: i",
                "image: i, resources: {limits: {nvidia.com/gpu: $GPUS}}",
            ),
            "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: \"$GPUS\"",
        ),
        (
            JOB.replace("template:", "ttlSecondsAfterFinished: $TTL, template:"),
            "spec.ttlSecondsAfterFinished: \"$TTL\"",
        ),
    ];
    for (text, expected) in cases {
        let said = refusal(&text);
        let advice = "is a variable of a shell; run envsubst on the file first";
        assert!(said.contains(&format!("{expected} {advice}")), "{said}");
    }
    let used = "image: i, env: [{name: A, value: $HOME/lib}], args: [\"${B}\", $C]";
    converted(&JOB.replace("image: i", used)).unwrap();
}

/// A PyTorchJob `t` of masters and workers, or a Volcano Job with its plugin, of 8 GPUs each.
fn torch(origin: &str, command: &str) -> (Value, String) {
    let pods = |role: &str| {
        format!(
            "template: {{spec: {{containers: [{{name: c, image: i, command: [bash, -c, '{command} {role}'], resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
        )
    };
    let (same, master, worker) = (pods(""), pods("m"), pods("w"));
    workload(&match origin {
        "volcano" => format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: t}}\nspec: {{plugins: {{pytorch: []}}, tasks: [{{name: master, replicas: 1, {master}}}, {{name: worker, replicas: 2, {worker}}}]}}"
        ),
        "joined" => format!(
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: t}}\nspec: {{pytorchReplicaSpecs: {{Master: {{replicas: 1, {same}}}, Worker: {{replicas: 2, {same}}}}}}}"
        ),
        _ => format!(
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: t}}\nspec: {{pytorchReplicaSpecs: {{Master: {{replicas: 1, {master}}}, Worker: {{replicas: 2, {worker}}}}}}}"
        ),
    })
}

#[test]
fn hostnames_in_commands_are_those_of_the_members() {
    let cases = [
        (
            "pytorch",
            "--m=t-master-0:29500",
            "--m=t-master-0-0.t:29500",
        ),
        (
            "pytorch",
            "ping t-worker-1.ns.svc",
            "ping t-worker-1-0.t.ns.svc",
        ),
        (
            "pytorch",
            "tcp://t-worker-$i /t-worker-1 a-t-worker-1 t-worker-1x",
            "tcp://t-worker-$i-0.t /t-worker-1 a-t-worker-1 t-worker-1x",
        ),
        (
            "joined",
            "t-master-0,t-worker-0,t-worker-1",
            "t-worker-0-0.t,t-worker-1-0.t,t-worker-2-0.t",
        ),
        (
            "volcano",
            "t-worker-1.t t-worker-1",
            "t-worker-1-0.t t-worker-1",
        ),
    ];
    for (origin, before, after) in cases {
        let (object, notes) = torch(origin, before);
        let command = &object["spec"]["groups"][0]["template"]["spec"]["containers"][0]["command"];
        let command = command[2].as_str().unwrap();
        assert_eq!(command.trim_end_matches(['m', ' ']), after);
        assert!(notes.contains("hostnames: those of members"), "{notes}");
    }
    let (_, notes) = torch("pytorch", "train");
    assert!(!notes.contains("hostnames"), "{notes}");
}

#[test]
fn the_ranks_of_members_with_several_gpus_are_set_for_commands_that_use_them() {
    for origin in ["pytorch", "volcano"] {
        let (object, notes) = torch(origin, "torchrun --nnodes=$WORLD_SIZE --node_rank=$(RANK)");
        for group in object["spec"]["groups"].as_array().unwrap() {
            let env = group["template"]["spec"]["containers"][0]["env"].to_string();
            assert!(
                env.contains(r#""name":"RANK","value":"$(PET_NODE_RANK)""#),
                "{env}"
            );
            assert!(
                env.contains(r#""name":"WORLD_SIZE","value":"$(PET_NNODES)""#),
                "{env}"
            );
        }
        assert!(
            notes.contains("variable RANK: set as by the origin"),
            "{notes}"
        );
    }
}

#[test]
fn a_volcano_job_gets_what_volcano_adds() {
    let task = "replicas: 2, template: {spec: {containers: [{name: c, image: i, command: [cat, /etc/volcano/default0.host]}]}}";
    for plugin in ["mpi: [--master=default0]", "pytorch: []", "tensorflow: []"] {
        let (object, _) = workload(&format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: j}}\nspec: {{maxRetry: 0, plugins: {{{plugin}}}, tasks: [{{{task}}}, {{{task}}}]}}"
        ));
        let spec = &object["spec"];
        let template = spec["groups"][0]["template"].to_string();
        assert!(template.contains("VC_DEFAULT1_HOSTS"), "{template}");
        let file = r#""volcano-default0.host":"j-default0-0-0.j\nj-default0-1-0.j""#;
        assert!(template.contains(file), "{template}");
        assert_eq!(spec["failurePolicy"]["limits"]["maxRestarts"], 3);
    }
}
