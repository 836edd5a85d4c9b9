//! Reads the material of a bug report, a kind at a time. Fields that are not whitelisted are dropped
//! page by page.

use futures_util::StreamExt;
use kube::api::ListParams;
use kube::core::{ListMeta, Request};
use lockstep_api::names::LEASE;
use serde::Deserialize;
use serde_json::Value;

use super::ClusterReader;
use super::connect::PAGE;
use super::logs::HowMuch;
use crate::bug_report::{Choice, Fields, Material, NameKind, fields};
use crate::doctor::diagnose;
use crate::logs::LogSource;
use crate::problem::Problem;
use crate::roles::remedy;
use chrono::{DateTime, Utc};

/// Kinds with their group, in the order of reading.
const CLUSTER: [(&str, &str); 4] = [
    ("/api/v1", "nodes"),
    ("/api/v1", "namespaces"),
    ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    ("/apis/training.lockstep.dev/v1alpha1", "nodeagents"),
];
const NAMESPACED: [(&str, &str); 6] = [
    ("/apis/training.lockstep.dev/v1alpha1", "trainingworkloads"),
    ("/apis/scheduling.lockstep.dev/v1alpha1", "podgroups"),
    ("/apis/training.lockstep.dev/v1alpha1", "restartorders"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/api/v1", "pods"),
    ("/api/v1", "events"),
];
/// Managers and agents.
const INSTALLED: [(&str, &str); 2] = [
    ("/apis/apps/v1", "deployments"),
    ("/apis/apps/v1", "daemonsets"),
];
const OF_LOCKSTEP: &str = "app.kubernetes.io/name in (lockstep,lockstep-agent)";
/// Most logs in an archive.
const LOGS: usize = 200;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Value>,
}

/// A list of one kind.
struct Source<'a> {
    group: &'a str,
    kind: &'a str,
    namespace: Option<&'a str>,
    labels: Option<&'a str>,
}

impl ClusterReader {
    /// The material of a report. `progress` gets a line about each large list.
    pub async fn bug_report(
        &self,
        choice: &Choice,
        tail: i64,
        now: DateTime<Utc>,
        progress: impl Fn(String),
    ) -> Result<Material, Problem> {
        let mut material = Material {
            versions: self.versions().await?,
            ..Material::default()
        };
        let namespace = choice.namespace.as_deref();
        if let Some(user) = self.user().await {
            material.found.name(NameKind::User, &user);
        }
        let manager = self.lease_namespace().await;
        material.found.name(NameKind::Namespace, &manager);
        let source = |(group, kind), namespace, labels| Source {
            group,
            kind,
            namespace,
            labels,
        };
        let cluster = CLUSTER.map(|kind| source(kind, None, None));
        let own = NAMESPACED.map(|kind| source(kind, namespace, None));
        let installed = INSTALLED.map(|kind| source(kind, None, Some(OF_LOCKSTEP)));
        let leases = ("/apis/coordination.k8s.io/v1", "leases");
        let leases = [source(leases, Some(manager.as_str()), None)];
        let all_fields = fields(choice.logs);
        for source in cluster
            .into_iter()
            .chain(own)
            .chain(installed)
            .chain(leases)
        {
            let Some(fields) = all_fields.get(source.kind) else {
                continue;
            };
            let read = self.pages(&source, fields, &mut material, &progress).await;
            note_missing(&mut material, source.kind, read)?;
        }
        if let Some(leases) = material.lists.get_mut("leases") {
            leases.retain(|lease| {
                let name = lease["metadata"]["name"].as_str();
                name.is_some_and(|name| name.ends_with(LEASE))
            });
        }
        material.configuration = self.manager_config(None).await?.map(|(_, text)| text);
        if material.configuration.is_none() {
            let line = "configuration of the manager: not allowed or not found".to_owned();
            material.missing.push(line);
        }
        let of_checks = namespace.unwrap_or(self.namespace());
        let facts = self.install_facts(of_checks, None).await;
        material.doctor = facts.ok().map(|mut facts| {
            material.note_facts(&mut facts);
            diagnose(&facts, now)
        });
        if material.doctor.is_none() {
            material.missing.push("doctor: not available".to_owned());
        }
        if choice.logs {
            self.read_logs(choice, tail, &mut material, &progress)
                .await?;
        }
        Ok(material)
    }

    async fn pages(
        &self,
        source: &Source<'_>,
        fields: &Fields,
        material: &mut Material,
        progress: &impl Fn(String),
    ) -> Result<(), Problem> {
        let Source { group, kind, .. } = source;
        let url = match source.namespace {
            Some(namespace) => format!("{group}/namespaces/{namespace}/{kind}"),
            None => format!("{group}/{kind}"),
        };
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = source.labels.map(str::to_owned);
        // A kind without objects was read, too.
        material.lists.entry((*kind).to_owned()).or_default();
        let mut read = 0;
        loop {
            let request = Request::new(url.as_str()).list(&params);
            let request = request.map_err(kube::Error::BuildRequest);
            let request = request.map_err(|error| self.problem(&error, kind))?;
            let page: Page = self.send(self.client.request(request), kind).await?;
            read += page.items.len();
            for object in page.items {
                material.add(kind, fields, object);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
            progress(format!("{read} {kind} read"));
        }
    }

    async fn read_logs(
        &self,
        choice: &Choice,
        tail: i64,
        material: &mut Material,
        progress: &impl Fn(String),
    ) -> Result<(), Problem> {
        let chosen = material.chosen(choice);
        let pods = material.of("pods").filter(|pod| {
            let uid = pod["metadata"]["uid"].as_str();
            uid.is_some_and(|uid| chosen.contains(uid))
        });
        let sources: Vec<LogSource> = pods.flat_map(sources).collect();
        if sources.len() > LOGS {
            let line = format!(
                "{} of {} logs: name workloads to get theirs",
                sources.len() - LOGS,
                sources.len()
            );
            material.missing.push(line);
        }
        let how_much = HowMuch {
            tail: Some(tail),
            ..HowMuch::default()
        };
        for (number, source) in sources.into_iter().take(LOGS).enumerate() {
            if number > 0 && number % 20 == 0 {
                progress(format!("{number} logs read"));
            }
            let previous = if source.previous { ".previous" } else { "" };
            let container = format!("{}{previous}", source.container);
            let opened = self.logs(std::slice::from_ref(&source), how_much).await;
            let opened = match opened {
                Ok((lines, _)) => Ok(lines
                    .filter_map(async |(_, line)| line.ok())
                    .collect::<Vec<_>>()
                    .await),
                Err(problem) => Err(problem),
            };
            match opened {
                Ok(lines) => {
                    let place = [source.namespace, source.pod, container];
                    material.logs.push((place, lines.join("\n")));
                }
                Err(problem) => {
                    let what = format!("log of {container} of pod {}", source.pod);
                    note_missing(material, &what, Err(problem))?;
                }
            }
        }
        Ok(())
    }
}

/// A missing right or kind is a line. Other problems end the command.
fn note_missing(
    material: &mut Material,
    what: &str,
    read: Result<(), Problem>,
) -> Result<(), Problem> {
    let why = match read {
        Ok(()) => return Ok(()),
        Err(Problem::NotAllowed { message }) => format!("not allowed; {}", remedy(&message)),
        Err(Problem::NotInstalled { .. }) => "not served".to_owned(),
        Err(Problem::Deleted { .. } | Problem::LogDeleted { .. } | Problem::Refused(_)) => {
            "not available".to_owned()
        }
        Err(other) => return Err(other),
    };
    material.lists.remove(what);
    material.missing.push(format!("{what}: {why}"));
    Ok(())
}

/// The logs of a pod, with those from before a restart of a container.
fn sources(pod: &Value) -> Vec<LogSource> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let statuses = pod["status"]["containerStatuses"].as_array();
    let mut sources = Vec::new();
    for status in statuses.into_iter().flatten() {
        let restarted = status["restartCount"].as_i64().unwrap_or_default() > 0;
        for previous in [false, true].into_iter().filter(|p| restarted || !p) {
            sources.push(LogSource {
                namespace: text(&pod["metadata"]["namespace"]),
                pod: text(&pod["metadata"]["name"]),
                container: text(&status["name"]),
                previous,
                prefix: String::new(),
                up_to_attempt: None,
                failure: None,
            });
        }
    }
    sources
}
