use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::http::StatusCode;
use axum::response::Response;
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::PreemptionPolicy;
use lockstep_model::Rules;
use serde::Deserialize;
use serde_json::{Value, json};

use super::security::{json_response, refused};
use super::state::{Dashboard, Query, path};
use crate::dashboard::variant::{AddedNodes, AssumedNodes};
use crate::dashboard::view::EngineInput;
use crate::file::{Manifest, parse_workload};
use crate::published::published;
use crate::queue::QueueReport;
use crate::reports;
use crate::view::{RenderOptions, View};
use crate::whatif::what_if;

/// How long the pods of members are kept for the next what-if.
const PODS: Duration = Duration::from_secs(30);
const ENGINE: Duration = Duration::from_secs(5);
/// Namespace of a manifest without one.
const DEFAULT_NAMESPACE: &str = "default";

/// A question of the what-if page.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Question {
    manifest: Option<String>,
    /// `NAMESPACE/NAME` of a workload, instead of a manifest.
    workload: Option<String>,
    drained: BTreeSet<String>,
    added: Option<AddedNodes>,
    preemption: bool,
}

impl Default for Question {
    fn default() -> Self {
        Self {
            manifest: None,
            workload: None,
            drained: BTreeSet::new(),
            added: None,
            preemption: true,
        }
    }
}

/// What a verb prints with `-o json`.
pub async fn verb(dashboard: &Dashboard, verb: &str, query: &Query) -> Response {
    let now = dashboard.live.now();
    let own = dashboard.live.view().await.namespace.clone();
    let namespace = query.namespace.clone().or(own);
    let workload = query
        .workload
        .as_ref()
        .map(|(n, w)| (n.as_str(), w.as_str()));
    let response = match &dashboard.live.cluster {
        Some(cluster) => reports::json(cluster, verb, namespace.as_deref(), workload, now).await,
        None if verb == "queue" => {
            let report = dashboard.queue_report().await;
            serde_json::to_value(report).map_err(Into::into)
        }
        None => Err(anyhow::anyhow!("a snapshot has only the queue")),
    };
    given(response)
}

fn given(response: Result<Value>) -> Response {
    match response {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(why) => refused(StatusCode::BAD_REQUEST, &format!("{why:#}")),
    }
}

/// A workload as a manifest, without what the API server adds.
pub async fn manifest(dashboard: &Dashboard, query: &Query) -> Response {
    let Some((namespace, name)) = &query.workload else {
        return refused(StatusCode::BAD_REQUEST, "workload: no name");
    };
    let workload = dashboard
        .live
        .view()
        .await
        .workload(namespace, name)
        .map(bare);
    let text = match workload {
        Some(workload) => serde_saphyr::to_string(&workload).map_err(Into::into),
        None => Err(anyhow::anyhow!("no workload {namespace}/{name}")),
    };
    given(text.map(|text| json!({ "manifest": text })))
}

/// Name and spec of a workload.
fn bare(workload: &TrainingWorkload) -> TrainingWorkload {
    let name = workload.metadata.name.clone().unwrap_or_default();
    let mut bare = TrainingWorkload::new(&name, workload.spec.clone());
    bare.metadata
        .namespace
        .clone_from(&workload.metadata.namespace);
    bare.metadata.labels.clone_from(&workload.metadata.labels);
    bare
}

pub async fn whatif(dashboard: &Dashboard, body: &[u8]) -> Response {
    let response = async {
        let question: Question = serde_json::from_slice(body)?;
        dashboard.what_if(question).await
    };
    given(response.await)
}

impl Dashboard {
    async fn what_if(&self, question: Question) -> Result<Value> {
        let mut workload = self.workload_of(&question).await?;
        if !question.preemption {
            workload.spec.scheduling.preemption_policy = Some(PreemptionPolicy::Never);
        }
        let pods = self.pods_of_members().await?;
        let now = self.live.now();
        let (input, rules) = {
            let view = self.live.view().await;
            let rules = view.configuration.as_ref();
            let rules = rules.and_then(|(namespace, text)| published(text, namespace).ok());
            (view.engine_input(pods), rules)
        };
        if matches!(input, EngineInput::Objects(_, Some(_))) {
            bail!("what-if needs the pods of all namespaces: start the dashboard without -n");
        }
        let rules = rules.map_or_else(Rules::default, |published| published.rules);
        let assumed = AssumedNodes {
            drained: question.drained,
            added: question.added,
        };
        let report = tokio::task::spawn_blocking(move || {
            let labels = rules.victims.excluded_labels.keys();
            let labels: BTreeSet<&str> = labels.map(String::as_str).collect();
            let mut file = input.snapshot(&labels, now);
            assumed.change(&mut file)?;
            what_if(&file, &workload, &rules)
        });
        let report = report.await??;
        let screen = report.screen(&RenderOptions::plain(now));
        Ok(json!({"report": report, "screen": screen}))
    }

    /// The workload of a question. Rules of the API are checked as with a snapshot.
    async fn workload_of(&self, question: &Question) -> Result<TrainingWorkload> {
        if let Some(text) = &question.manifest {
            let Manifest {
                mut workload,
                written,
            } = parse_workload(text)?;
            lockstep_convert::check(&written)?;
            let cluster = self.live.cluster.as_ref();
            let own = cluster.map_or(DEFAULT_NAMESPACE, |c| c.namespace());
            workload.metadata.namespace.get_or_insert(own.to_owned());
            return Ok(workload);
        }
        let named = question.workload.as_deref().and_then(path);
        let (namespace, name) = named.context("neither a manifest nor a workload is named")?;
        let found = self.live.view().await.workload(&namespace, &name).map(bare);
        found.with_context(|| format!("no workload {namespace}/{name}"))
    }

    /// Pods of members, unless all pods are in the view.
    async fn pods_of_members(&self) -> Result<Option<Vec<lockstep_model::Pod>>> {
        let (all, nodes, namespace) = {
            let view = self.live.view().await;
            (
                view.pods.is_some(),
                view.nodes.is_some(),
                view.namespace.clone(),
            )
        };
        if !nodes {
            bail!(
                "what-if needs the right to list nodes; an administrator can bind you ClusterRole lockstep-dashboard"
            );
        }
        let Some(cluster) = self.live.cluster.as_ref().filter(|_| !all) else {
            return Ok(None);
        };
        let read = cluster.member_pods(namespace.as_deref());
        let pods = self.member_pods.get(PODS, self.live.now(), read).await?;
        Ok(Some(pods))
    }

    /// The queue with places, computed at most once in 5 s. `None` without the right to list what
    /// the engine needs.
    pub async fn queue_report(&self) -> Option<QueueReport> {
        let now = self.live.now();
        let compute = async {
            // Without its pods, a running gang seems to reserve what it holds.
            let pods = self.pods_of_members().await?;
            let (input, groups) = {
                let view = self.live.view().await;
                let groups = view.groups.clone().context("no right to list gangs")?;
                (view.engine_input(pods), groups)
            };
            let run = tokio::task::spawn_blocking(move || {
                crate::queue::queue(&input.snapshot(&BTreeSet::new(), now), &groups)
            });
            anyhow::Ok(run.await?)
        };
        self.queue.get(ENGINE, now, Box::pin(compute)).await.ok()
    }
}
