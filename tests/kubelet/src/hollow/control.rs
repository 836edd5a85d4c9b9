//! Control of the nodes by tests: HTTP on loopback, JSON in, JSON out.
//!
//! | request | body | effect |
//! |---|---|---|
//! | `POST /exit` | pod, container, code | the container's process exits |
//! | `POST /oom` | pod, container | the container is killed for lack of memory: 137, `OOMKilled` |
//! | `POST /hang` | pod, container | the container ignores SIGTERM and fails its probes |
//! | `POST /evict` | pod, message | the kubelet evicts the pod |
//! | `POST /node/slow-start` | node, millis | starts on the node take this much longer |
//! | `POST /node/reject` | node, reason, message | new pods are refused; without a reason, they are accepted again |
//! | `POST /node/vanish` | node | no Lease, no status, no agent; containers continue |
//! | `POST /node/return` | node | the node returns |
//! | `POST /node/restart-kubelet` | node | the kubelet's memory is rebuilt from the API |
//! | `POST /agent/stop`, `/agent/start` | node | the node's agent and its pod end, or start again |
//! | `GET /state` | | pods and containers by node |
//! | `GET /deliveries` | | [delays](super::deliveries::Delays) of the orders to the agents |
//! | `GET /training` | | number of training processes under supervisors, by attempt |
//!
//! `pod` is `NAMESPACE/NAME`. Without `container`, the pod's first container is used. Errors
//! are 404 or 400 with a text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::deliveries::Delays;
use super::kubelets::Command;
use super::supervisor::Supervisor;
use crate::model::admission::Rejection;
use crate::model::{PodDesc, State};
use crate::runtime::{Ended, Fault, Unsupported};

/// Body of all requests. Each request uses some of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Order {
    pod: String,
    container: Option<String>,
    code: i32,
    node: String,
    millis: u64,
    reason: Option<String>,
    message: String,
}

/// A container in the response of `GET /state`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    name: String,
    id: String,
    restart_count: i32,
    state: &'static str,
    exit_code: Option<i32>,
    pid: Option<u32>,
}

type Answer = Result<Json<Value>, (StatusCode, String)>;

#[derive(Clone)]
struct Control {
    supervisor: Arc<Supervisor>,
    kubelets: mpsc::Sender<Command>,
}

/// The routes of the control interface.
pub(super) fn router(supervisor: Arc<Supervisor>, kubelets: mpsc::Sender<Command>) -> Router {
    Router::new()
        .route("/exit", post(exit))
        .route("/oom", post(oom))
        .route("/hang", post(hang))
        .route("/evict", post(evict))
        .route("/node/slow-start", post(slow_start))
        .route("/node/reject", post(reject))
        .route("/node/vanish", post(vanish))
        .route("/node/return", post(come_back))
        .route("/node/restart-kubelet", post(restart_kubelet))
        .route("/agent/stop", post(stop_agent))
        .route("/agent/start", post(start_agent))
        .route("/state", get(state))
        .route("/training", get(training))
        .route("/deliveries", get(deliveries))
        .with_state(Control {
            supervisor,
            kubelets,
        })
}

fn empty() -> Json<Value> {
    Json(json!({}))
}

fn missing(what: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("{what} does not exist\n"))
}

fn failed(error: &anyhow::Error) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n"))
}

impl Control {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, (StatusCode, String)> {
        let stopped = || {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the nodes are stopping\n".to_owned(),
            )
        };
        let (reply, answer) = oneshot::channel();
        self.kubelets
            .send(command(reply))
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())
    }

    async fn pod(&self, order: &Order) -> Result<(usize, Arc<PodDesc>), (StatusCode, String)> {
        let (namespace, name) = order.pod.split_once('/').ok_or((
            StatusCode::BAD_REQUEST,
            "pod is not of the form NAMESPACE/NAME\n".to_owned(),
        ))?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found = self
            .ask(|reply| Command::Find {
                namespace,
                name,
                reply,
            })
            .await?;
        found.ok_or_else(|| missing(&format!("pod {}", order.pod)))
    }

    /// Node and ID of the running container that a request names.
    async fn container(&self, order: &Order) -> Result<(usize, String), (StatusCode, String)> {
        let (node, pod) = self.pod(order).await?;
        let name = order
            .container
            .clone()
            .or_else(|| pod.spec.containers.first().map(|c| c.name.clone()));
        let name = name.unwrap_or_default();
        let runtime = self.supervisor.runtime(node);
        let view = runtime.view(&pod.uid);
        match view.latest(&name) {
            // A container that its supervisor holds has no process that could end.
            Some(c) if matches!(c.state, State::Running { .. }) && !runtime.is_held(&c.id) => {
                Ok((node, c.id.clone()))
            }
            _ => Err(missing(&format!(
                "running container {name} of pod {}",
                order.pod
            ))),
        }
    }

    fn node(&self, order: &Order) -> Result<usize, (StatusCode, String)> {
        self.supervisor
            .number(&order.node)
            .ok_or_else(|| missing(&format!("node {}", order.node)))
    }

    fn inject(&self, node: usize, fault: &Fault) -> Answer {
        let refused = |e: Unsupported| (StatusCode::NOT_IMPLEMENTED, format!("{e}\n"));
        self.supervisor
            .runtime(node)
            .inject(fault)
            .map_err(refused)?;
        Ok(empty())
    }

    async fn end(&self, order: &Order, ended: Ended) -> Answer {
        let (node, id) = self.container(order).await?;
        self.inject(node, &Fault::End { id, ended })
    }
}

async fn exit(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    control.end(&order, Ended::with_code(order.code)).await
}

async fn oom(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    control.end(&order, Ended::oom()).await
}

async fn hang(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let (node, id) = control.container(&order).await?;
    control.inject(node, &Fault::Hang { id })
}

async fn evict(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let (_, pod) = control.pod(&order).await?;
    let message = if order.message.is_empty() {
        "The node was low on resource: memory.".into()
    } else {
        order.message
    };
    control
        .ask(|reply| Command::Evict {
            uid: pod.uid.clone(),
            message,
            reply,
        })
        .await?;
    Ok(empty())
}

async fn slow_start(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    control.inject(
        node,
        &Fault::SlowStart {
            by: Duration::from_millis(order.millis),
        },
    )
}

async fn reject(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    let rejection = order.reason.map(|reason| Rejection {
        reason,
        message: order.message,
    });
    control
        .ask(|reply| Command::Reject {
            node,
            rejection,
            reply,
        })
        .await?;
    Ok(empty())
}

async fn vanish(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    control.supervisor.vanish(control.node(&order)?);
    Ok(empty())
}

async fn come_back(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    control
        .supervisor
        .come_back(node)
        .await
        .map_err(|e| failed(&e))?;
    control
        .ask(|reply| Command::Returned { node, reply })
        .await?;
    Ok(empty())
}

async fn restart_kubelet(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    control
        .ask(|reply| Command::RestartKubelet { node, reply })
        .await?;
    Ok(empty())
}

async fn stop_agent(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    control
        .supervisor
        .stop_agent(node)
        .await
        .map_err(|e| failed(&e))?;
    Ok(empty())
}

async fn start_agent(Shared(control): Shared<Control>, Json(order): Json<Order>) -> Answer {
    let node = control.node(&order)?;
    control
        .supervisor
        .start_agent(node)
        .await
        .map_err(|e| failed(&e))?;
    Ok(empty())
}

async fn state(Shared(control): Shared<Control>) -> Json<Value> {
    let mut nodes: BTreeMap<String, BTreeMap<String, Vec<Shown>>> = BTreeMap::new();
    for (name, runtime) in control.supervisor.runtimes() {
        let pods = nodes.entry(name.to_owned()).or_default();
        for (pod, view) in runtime.table().all() {
            let containers = view.containers.iter().map(|c| {
                let (state, exit_code) = match c.state {
                    State::Creating => ("creating", None),
                    State::NotCreated { .. } => ("not created", None),
                    State::Running { .. } => ("running", None),
                    State::Exited { exit_code, .. } => ("exited", Some(exit_code)),
                };
                let (name, id) = (c.name.clone(), c.id.clone());
                Shown {
                    name,
                    id,
                    restart_count: c.attempt,
                    state,
                    exit_code,
                    pid: runtime.pid(&c.id),
                }
            });
            pods.insert(
                format!("{}/{}", pod.namespace, pod.name),
                containers.collect(),
            );
        }
    }
    Json(json!({"nodes": nodes}))
}

async fn deliveries(Shared(control): Shared<Control>) -> Json<Delays> {
    Json(control.supervisor.agents.deliveries.delays())
}

/// Training processes under supervisors.
async fn training(Shared(control): Shared<Control>) -> Json<BTreeMap<i64, usize>> {
    let mut by_attempt: BTreeMap<i64, usize> = BTreeMap::new();
    for (_, runtime) in control.supervisor.runtimes() {
        for (pod, _) in runtime.table().all() {
            let state = runtime.supervisor(&pod.uid);
            if let Some(attempt) = state.and_then(|s| s.running) {
                *by_attempt.entry(attempt).or_default() += 1;
            }
        }
    }
    Json(by_attempt)
}
