//! Bad input is refused with the field and what is allowed, or shows in a condition; it never half-works.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::manifests::parse;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_e2e::cluster;
use serde_json::Value;

/// File, HTTP code, and what the message must contain. Files of one number are variants of one mistake.
const REFUSED: &[(&str, u16, &str)] = &[
    ("01-unknown-field", 400, r#"unknown field "spec.groups[0].replica""#),
    ("02-negative-replicas", 422, "spec.groups[0].replicas in body should be greater than or equal to 0"),
    ("02-size-zero", 422, "spec.groups[0].size in body should be greater than or equal to 1"),
    ("03-replicas-beyond-int32", 422, "spec.groups[0].replicas in body should be less than or equal to 20000"),
    ("03-fractional-replicas", 422, "spec.groups[0].replicas in body must be of type int32"),
    ("03-quoted-replicas", 422, "spec.groups[0].replicas in body must be of type integer"),
    ("04-too-many-members", 422, "replicas x size over all groups must be at most 20000 members"),
    ("05-min-count-above-members", 422, "scheduling.gang.minCount must be at most the number of members"),
    ("06-duplicate-groups", 422, r#"spec.groups[1]: Duplicate value: {"name":"workers"}"#),
    ("07-no-groups", 422, "spec.groups in body should have at least 1 items"),
    ("07-no-containers", 422, "must have at least one container"),
    ("08-uppercase-group", 422, "spec.groups[0].name in body should match"),
    ("08-long-group", 422, "spec.groups[0].name: Too long: may not be more than 40 bytes"),
    ("09-long-name", 422, "hostnames <name>-<group>-<replica>-<index> are limited to 63 characters"),
    ("09-dotted-name", 422, "metadata.name must be a DNS label"),
    ("11-zero-deadline", 422, "spec.activeDeadlineSeconds in body should be greater than or equal to 1"),
    ("11-negative-timeout", 422, "spec.scheduling.timeoutSeconds in body should be greater than or equal to 0"),
    ("11-duration-string", 422, "spec.ttlSecondsAfterFinished in body must be of type integer"),
    ("11-three-hundred-years", 422, "spec.activeDeadlineSeconds in body should be less than or equal to 31536000"),
    ("12-huge-restart-limit", 422, "maxRestarts in body should be less than or equal to 100"),
    ("14-exit-code-zero", 422, "exitCodes.values[0] in body should be greater than or equal to 1"),
    ("14-exit-code-300", 422, "exitCodes.values[0] in body should be less than or equal to 255"),
    ("15-duplicate-rules", 422, "rule names must be unique"),
    ("16-self-dependency", 422, "a group cannot depend on itself"),
    ("16-cycle", 422, "dependsOn may only name groups that stand earlier in spec.groups"),
    ("16-unknown-group", 422, "dependsOn may only name groups that stand earlier in spec.groups"),
    ("16-dependency-within-a-gang", 422, "dependsOn needs scheduling.gang.scope Group or Replica"),
    ("19-forged-label", 422, "labels with the prefix training.lockstep.dev/ are set by the operator"),
    ("19-forged-annotation", 422, "annotations with the prefix training.lockstep.dev/ are set by the operator"),
    ("19-chosen-node", 422, "nodeName is chosen by the operator"),
    ("27-other-namespace", 400, r#"unknown field "spec.groups[0].template.metadata.namespace""#),
    ("28-priority-in-template", 422, "set spec.priorityClassName of the workload"),
    ("31-fractional-accelerator", 422, "limits.nvidia.com/gpu in body must be of type integer,string"),
];

/// The good workload that the edits below are made to.
const BASE: &str = "17-base";

/// Edits of a running workload, all refused with 422.
const EDITS: &[(&str, &str)] = &[
    ("17-template-edit", "groups[].template is immutable while running; set spec.suspend: true to change it"),
    ("17-size-edit", "groups[].size and dependsOn are immutable while running"),
    ("17-group-added", "groups cannot be added, removed, renamed or reordered"),
    ("17-managed-by-edit", "managedBy is immutable"),
];

/// What the schema cannot know: file, condition, its status, its reason, and what its message must contain.
const CONDITIONS: &[(&str, &str, bool, &str, &str)] = &[
    ("28-unknown-priority-class", types::STALLED, true, reasons::INVALID_PRIORITY_CLASS, "no-such-class"),
    ("30-no-such-node", types::ADMITTED, false, reasons::UNSCHEDULABLE, ""),
    ("30-nine-accelerators", types::ADMITTED, false, reasons::UNSCHEDULABLE, ""),
    ("31-limits-below-requests", types::STALLED, true, reasons::INVALID_TEMPLATE, "containers[0].resources.requests"),
    ("31-negative-quantity", types::STALLED, true, reasons::INVALID_TEMPLATE, "containers[0].resources.requests"),
    ("31-not-a-quantity", types::STALLED, true, reasons::INVALID_TEMPLATE, ""),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("bad-input")
}

fn read(file: &str) -> Result<String> {
    let path = folder().join(format!("{file}.yaml"));
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Sends a manifest as `kubectl create` does, unknown fields refused; the refusal's code and message.
async fn create(client: &Client, namespace: &str, yaml: String) -> Result<Option<(u16, String)>> {
    let url = format!("/apis/training.lockstep.dev/v1alpha1/namespaces/{namespace}/trainingworkloads");
    let mut request = kube::core::Request::new(&url).create(&PostParams::default(), yaml.into_bytes())?;
    *request.uri_mut() = format!("{url}?fieldValidation=Strict&dryRun=All").parse()?;
    request.headers_mut().insert("content-type", "application/yaml".parse()?);
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
        .map(|e| Ok(e?.path().file_stem().context("a file name")?.to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let expected: BTreeSet<String> = REFUSED
        .iter()
        .map(|c| c.0)
        .chain(EDITS.iter().map(|c| c.0))
        .chain(CONDITIONS.iter().map(|c| c.0))
        .chain([BASE])
        .map(String::from)
        .collect();
    ensure!(files == expected, "{:?}", files.symmetric_difference(&expected).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_manifests_are_refused_with_the_field_and_what_is_allowed() -> Result<()> {
    let client = cluster().await?.client().await?;
    let mut wrong = Vec::new();
    for (file, code, message) in REFUSED {
        match create(&client, "default", read(file)?).await? {
            Some((c, m)) if c == *code && m.contains(message) => {}
            other => wrong.push(format!("{file}: expected {code} {message:?}, got {other:?}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_what_is_fixed_while_running_are_refused_and_say_what_may_change() -> Result<()> {
    scenario(cluster().await?, "edits", &Shape { nodes: 1, ..Shape::default() }, async |t| {
        let base = t.create(parse(&read(BASE)?)?).await?.name_any();
        for (file, message) in EDITS {
            let mut edit = parse(&read(file)?)?;
            lockstep_cluster::manifests::pin_to_pool(&mut edit, &t.name);
            let answer = t.workloads().patch(&base, &PatchParams::default(), &Patch::Merge(edit)).await;
            let (code, text) = refusal(answer)?.with_context(|| format!("{file} was accepted"))?;
            ensure!(code == 422 && text.contains(message), "{file}: {code} {text}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_cluster_can_refuse_shows_in_a_condition_and_creates_no_pod() -> Result<()> {
    scenario(cluster().await?, "conditions", &Shape { nodes: 2, ..Shape::default() }, async |t| {
        for (file, type_, status, reason, message) in CONDITIONS {
            let mut manifest = parse(&read(file)?)?;
            manifest["metadata"]["name"] = (*file).replacen(|c: char| c.is_ascii_digit(), "x", 2).into();
            let name = t.create(manifest).await?.name_any();
            let said = t.condition_is(&name, type_, *status, reason).await.context(*file)?;
            ensure!(said.contains(message), "{file}: {said}");
            ensure!(t.pods(&name).await?.is_empty(), "{file} has pods");
            t.workloads().delete(&name, &DeleteParams::default()).await?;
        }
        Ok(())
    })
    .await
}
