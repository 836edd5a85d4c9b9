//! Bad input is refused with the field and the allowed values, or reported in a condition. It never
//! works partly.

mod expected;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use lockstep_cluster::manifests::parse;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::cluster;
use serde_json::Value;

use expected::Outcome::Waits;
use expected::{ACCEPTED, BASE, EDITS, REFUSED};

/// Cases with manifests here. The other cases of our list are actions instead of manifests: 20,
/// deletions by users (`life`, `restart`), and 22, a name that is reused at once (`placement`).
const CASES: [RangeInclusive<u32>; 4] = [1..=12, 14..=19, 21..=21, 27..=33];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("bad-input")
}

fn read(file: &str) -> Result<String> {
    let path = folder().join(format!("{file}.yaml"));
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Sends a manifest as `kubectl create` does, with strict fields. Returns code and message of a
/// refusal.
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

/// Creates the documents of a manifest in turn, each after the previous documents have taken
/// effect.
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
                    // The next file may have a Service of this name.
                    let service = format!("service/{workload}");
                    t.kubectl(&["wait", "--for=delete", &service])
                        .await
                        .context(*file)?;
                }
            }
            Ok(())
        },
    )
    .await
}
