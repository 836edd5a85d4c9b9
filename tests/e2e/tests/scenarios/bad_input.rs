//! Bad input is refused with the field and what is allowed, or shows in a condition; it never
//! half-works.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::parse;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::cluster;
use serde_json::Value;

/// File, HTTP code, and what the message must contain. Files of one number are variants of one
/// mistake.
const REFUSED: &[(&str, u16, &str)] = &[
    (
        "01-unknown-field",
        400,
        r#"unknown field "spec.groups[0].replica""#,
    ),
    (
        "02-negative-replicas",
        422,
        "spec.groups[0].replicas in body should be greater than or equal to 0",
    ),
    (
        "02-size-zero",
        422,
        "spec.groups[0].size in body should be greater than or equal to 1",
    ),
    (
        "03-replicas-beyond-int32",
        422,
        "spec.groups[0].replicas in body should be less than or equal to 20000",
    ),
    (
        "03-fractional-replicas",
        422,
        "spec.groups[0].replicas in body must be of type int32",
    ),
    (
        "03-quoted-replicas",
        422,
        "spec.groups[0].replicas in body must be of type integer",
    ),
    (
        "04-too-many-members",
        422,
        "replicas x size over all groups must be at most 20000 members",
    ),
    (
        "04-beyond-int32",
        422,
        "replicas x size over all groups must be at most 20000 members",
    ),
    (
        "05-min-count-above-members",
        422,
        "scheduling.gang.minCount must be at most the number of members",
    ),
    (
        "06-duplicate-groups",
        422,
        r#"spec.groups[1]: Duplicate value: {"name":"workers"}"#,
    ),
    (
        "07-no-groups",
        422,
        "spec.groups in body should have at least 1 items",
    ),
    ("07-no-containers", 422, "must have at least one container"),
    (
        "08-uppercase-group",
        422,
        "spec.groups[0].name in body should match",
    ),
    (
        "08-emoji-group",
        422,
        "spec.groups[0].name in body should match",
    ),
    (
        "08-long-group",
        422,
        "spec.groups[0].name: Too long: may not be more than 40 bytes",
    ),
    (
        "09-long-name",
        422,
        "hostnames <name>-<group>-<replica>-<index> are limited to 63 characters",
    ),
    (
        "09-generated-name",
        422,
        "hostnames <name>-<group>-<replica>-<index> are limited to 63 characters",
    ),
    ("09-dotted-name", 422, "metadata.name must be a DNS label"),
    (
        "11-zero-deadline",
        422,
        "spec.activeDeadlineSeconds in body should be greater than or equal to 1",
    ),
    (
        "11-negative-timeout",
        422,
        "spec.scheduling.timeoutSeconds in body should be greater than or equal to 0",
    ),
    (
        "11-duration-string",
        422,
        "spec.ttlSecondsAfterFinished in body must be of type integer",
    ),
    (
        "11-three-hundred-years",
        422,
        "spec.activeDeadlineSeconds in body should be less than or equal to 31536000",
    ),
    (
        "12-huge-restart-limit",
        422,
        "maxRestarts in body should be less than or equal to 100",
    ),
    (
        "14-exit-code-zero",
        422,
        "exitCodes.values[0] in body should be greater than or equal to 1",
    ),
    (
        "14-exit-code-300",
        422,
        "exitCodes.values[0] in body should be less than or equal to 255",
    ),
    ("15-duplicate-rules", 422, "rule names must be unique"),
    (
        "15-progress-without-supervisor",
        422,
        "progress is watched by the supervisor: inPlace.supervisor must be Auto",
    ),
    (
        "15-progress-of-five-seconds",
        422,
        "progress.timeoutSeconds in body should be greater than or equal to 10",
    ),
    ("16-self-dependency", 422, "a group cannot depend on itself"),
    (
        "16-cycle",
        422,
        "dependsOn may only name groups that stand earlier in spec.groups",
    ),
    (
        "16-unknown-group",
        422,
        "dependsOn may only name groups that stand earlier in spec.groups",
    ),
    (
        "16-dependency-within-a-gang",
        422,
        "dependsOn needs scheduling.gang.scope Group or Replica",
    ),
    (
        "19-forged-label",
        422,
        "labels with the prefix training.lockstep.dev/ are set by the operator",
    ),
    (
        "19-forged-annotation",
        422,
        "annotations with the prefix training.lockstep.dev/ are set by the operator",
    ),
    ("19-chosen-node", 422, "nodeName is chosen by the operator"),
    (
        "19-scheduling-gate",
        422,
        "schedulingGates are set by the operator",
    ),
    (
        "27-other-namespace",
        400,
        r#"unknown field "spec.groups[0].template.metadata.namespace""#,
    ),
    (
        "28-priority-in-template",
        422,
        "set spec.priorityClassName of the workload",
    ),
    (
        "28-system-priority-class",
        422,
        "the classes system-* belong to the cluster's own components",
    ),
    (
        "31-not-a-quantity",
        422,
        "spec.groups[0].template.spec.containers[0].resources.requests.memory in body should match",
    ),
];

/// The good workload that the edits below are made to.
const BASE: &str = "17-base";

/// Edits of a running workload, all refused with 422.
const EDITS: &[(&str, &str)] = &[
    (
        "17-template-edit",
        "groups[].template is immutable while running; set spec.suspend: true to change it",
    ),
    (
        "17-size-edit",
        "groups[].size and dependsOn are immutable while running",
    ),
    (
        "17-group-added",
        "groups cannot be added, removed, renamed or reordered",
    ),
    ("17-managed-by-edit", "managedBy is immutable"),
];

/// What becomes of the last workload of a manifest that is accepted.
enum Outcome {
    /// It holds no pod, and a condition has this type, status, reason and message.
    Waits(&'static str, bool, &'static str, &'static str),
    /// It runs as if the rest of the manifest were not there.
    Runs,
}
use Outcome::{Runs, Waits};

/// What the schema cannot know.
const ACCEPTED: &[(&str, Outcome)] = &[
    ("10-names-that-run-together", Runs),
    ("18-forged-status", Runs),
    (
        "21-foreign-service",
        Waits(
            types::STALLED,
            true,
            reasons::NAME_CONFLICT,
            "Service bad exists and is not owned",
        ),
    ),
    ("21-forged-member", Runs),
    (
        "28-unknown-priority-class",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_PRIORITY_CLASS,
            "no-such-class",
        ),
    ),
    (
        "29-never-preempts",
        Waits(
            types::ADMITTED,
            false,
            reasons::UNSCHEDULABLE,
            "nvidia.com/gpu",
        ),
    ),
    (
        "30-no-such-node",
        Waits(types::ADMITTED, false, reasons::UNSCHEDULABLE, ""),
    ),
    (
        "30-nine-accelerators",
        Waits(types::ADMITTED, false, reasons::UNSCHEDULABLE, ""),
    ),
    (
        "31-limits-below-requests",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "containers[0].resources.requests",
        ),
    ),
    (
        "31-negative-quantity",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "containers[0].resources.requests",
        ),
    ),
    (
        "31-fractional-accelerator",
        Waits(
            types::STALLED,
            true,
            reasons::INVALID_TEMPLATE,
            "must be an integer",
        ),
    ),
    ("31-half-a-cpu", Runs),
    (
        "32-policy",
        Waits(
            types::ADMITTED,
            false,
            reasons::FORBIDDEN,
            "no second member here",
        ),
    ),
    (
        "32-quota",
        Waits(types::ADMITTED, false, reasons::QUOTA_EXCEEDED, "one-pod"),
    ),
];

/// The cases that are files here. The others of the list that we hold ourselves to are deeds, not
/// manifests: 20, what a user deletes by hand (`life`, `restart`), and 22, a name that is used
/// again at once (`placement`).
const CASES: [RangeInclusive<u32>; 4] = [1..=12, 14..=19, 21..=21, 27..=32];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("bad-input")
}

fn read(file: &str) -> Result<String> {
    let path = folder().join(format!("{file}.yaml"));
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Sends a manifest as `kubectl create` does, unknown fields refused; the refusal's code and
/// message.
async fn create(client: &Client, namespace: &str, yaml: String) -> Result<Option<(u16, String)>> {
    let url =
        format!("/apis/training.lockstep.dev/v1alpha1/namespaces/{namespace}/trainingworkloads");
    let mut request =
        kube::core::Request::new(&url).create(&PostParams::default(), yaml.into_bytes())?;
    *request.uri_mut() = format!("{url}?fieldValidation=Strict&dryRun=All").parse()?;
    request
        .headers_mut()
        .insert("content-type", "application/yaml".parse()?);
    refusal(client.request::<Value>(request).await)
}

fn refusal<T>(answer: kube::Result<T>) -> Result<Option<(u16, String)>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message.clone()))),
        Err(e) => Err(e.into()),
    }
}

#[test]
fn every_bad_manifest_has_an_expectation() -> Result<()> {
    let files: BTreeSet<String> = std::fs::read_dir(folder())?
        .map(|e| {
            Ok(e?
                .path()
                .file_stem()
                .context("a file name")?
                .to_string_lossy()
                .into_owned())
        })
        .collect::<Result<_>>()?;
    let expected: BTreeSet<String> = REFUSED
        .iter()
        .map(|c| c.0)
        .chain(EDITS.iter().map(|c| c.0))
        .chain(ACCEPTED.iter().map(|c| c.0))
        .chain([BASE])
        .map(String::from)
        .collect();
    ensure!(
        files == expected,
        "{:?}",
        files.symmetric_difference(&expected).collect::<Vec<_>>()
    );
    let cases: BTreeSet<u32> = files
        .iter()
        .map(|f| {
            f.split('-')
                .next()
                .context("a number")?
                .parse()
                .context("a number")
        })
        .collect::<Result<_>>()?;
    ensure!(
        cases.iter().copied().eq(CASES.into_iter().flatten()),
        "{cases:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_manifests_are_refused_with_the_field_and_what_is_allowed() -> Result<()> {
    let client = cluster().await?.client().await?;
    let mut wrong = Vec::new();
    for (file, code, message) in REFUSED {
        match create(&client, "default", read(file)?).await? {
            Some((c, m)) if c == *code && m.contains(message) => {}
            other => wrong.push(format!(
                "{file}: expected {code} {message:?}, got {other:?}"
            )),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_what_is_fixed_while_running_are_refused_and_say_what_may_change() -> Result<()> {
    scenario(
        cluster().await?,
        "edits",
        &Shape {
            nodes: 1,
            ..Shape::default()
        },
        async |t| {
            let base = t.create(parse(&read(BASE)?)?).await?.name_any();
            for (file, message) in EDITS {
                let mut edit = parse(&read(file)?)?;
                lockstep_cluster::manifests::pin_to_pool(&mut edit, &t.name);
                let answer = t
                    .workloads()
                    .patch(&base, &PatchParams::default(), &Patch::Merge(edit))
                    .await;
                let (code, text) =
                    refusal(answer)?.with_context(|| format!("{file} was accepted"))?;
                ensure!(
                    code == 422 && text.contains(message),
                    "{file}: {code} {text}"
                );
            }
            Ok(())
        },
    )
    .await
}

/// Creates the documents of a manifest one after the other, each as soon as those before it have
/// their effect.
async fn create_all(t: &Scenario<'_>, file: &str) -> Result<Vec<DynamicObject>> {
    let mut made: Vec<DynamicObject> = Vec::new();
    for document in read(file)?.split("\n---\n") {
        for workload in workloads(&made) {
            t.running(&workload).await?;
        }
        made.push(t.create(parse(document)?).await?);
        if made
            .last()
            .and_then(|o| o.types.as_ref())
            .is_some_and(|t| t.kind == "ValidatingAdmissionPolicyBinding")
        {
            t.until_refused("bad-policed-1-probe").await?;
        }
    }
    Ok(made)
}

fn workloads(objects: &[DynamicObject]) -> Vec<String> {
    let is_workload = |o: &&DynamicObject| {
        o.types
            .as_ref()
            .is_some_and(|t| t.kind == "TrainingWorkload")
    };
    objects
        .iter()
        .filter(is_workload)
        .map(ResourceExt::name_any)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_cluster_can_refuse_shows_in_a_condition_and_the_rest_runs() -> Result<()> {
    scenario(
        cluster().await?,
        "accepted",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            for (file, outcome) in ACCEPTED {
                let made = create_all(t, file).await.context(*file)?;
                let mut running = workloads(&made);
                if let Waits(type_, status, reason, message) = outcome {
                    let waiting = running.pop().context("a workload")?;
                    let said = t
                        .condition_is(&waiting, type_, *status, reason)
                        .await
                        .context(*file)?;
                    ensure!(said.contains(message), "{file}: {said}");
                    t.no_pods(&waiting).await.context(*file)?;
                }
                for workload in running {
                    t.running(&workload).await.context(*file)?;
                    let status = t
                        .workloads()
                        .get(&workload)
                        .await?
                        .status
                        .context("status")?;
                    ensure!(
                        status.attempt == 1 && status.preemptions == 0,
                        "{file}: {workload} was disturbed: {status:?}"
                    );
                }
                for object in made.iter().rev() {
                    let kind = object.types.as_ref().context("a kind")?.kind.clone();
                    t.kubectl(&["delete", &kind, &object.name_any(), "--wait"])
                        .await
                        .context(*file)?;
                }
                for workload in workloads(&made) {
                    t.no_pods(&workload).await.context(*file)?;
                }
            }
            Ok(())
        },
    )
    .await
}
