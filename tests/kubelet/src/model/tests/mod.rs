//! A pod on a runtime without delays, driven by the test.

mod lifecycle;
mod restart_all;
mod restarts;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec, PodStatus};
use serde_json::{Value, json};

use super::*;

/// A pod, its worker and its runtime.
struct Rig {
    pod: PodDesc,
    worker: PodWorker,
    view: PodView,
    config: KubeletConfig,
    now: DateTime<Utc>,
    /// Status of the last sync.
    status: PodStatus,
    /// All actions in order, as short text.
    log: Vec<String>,
    /// Containers that ignore SIGTERM.
    stubborn: Vec<&'static str>,
    next_id: u32,
}

impl Rig {
    fn new(spec: Value) -> Self {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        Self {
            pod: PodDesc {
                namespace: "ns".into(),
                name: "pod".into(),
                uid: "u1".into(),
                generation: Some(1),
                spec,
                ..PodDesc::default()
            },
            worker: PodWorker::new(None, now),
            view: PodView::default(),
            config: KubeletConfig::default(),
            now,
            status: PodStatus::default(),
            log: Vec::new(),
            stubborn: Vec::new(),
            next_id: 0,
        }
    }

    /// Syncs once and executes the actions.
    fn step(&mut self) -> Outcome {
        let outcome = self
            .worker
            .sync(&self.pod, &self.view, &self.config, self.now);
        self.status = outcome.status.clone();
        for action in &outcome.actions {
            self.act(action);
        }
        outcome
    }

    /// Syncs until no action is left.
    fn settle(&mut self) -> Outcome {
        for _ in 0..100 {
            let outcome = self.step();
            if outcome.actions.is_empty() || outcome.actions == [Action::DeletePod] {
                return outcome;
            }
        }
        panic!("does not settle: {:?}", self.log);
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::CreateSandbox => {
                self.log.push("sandbox".into());
                self.view.sandbox = SandboxView::Ready {
                    ip: "10.0.0.1".into(),
                };
            }
            Action::Start { name, attempt } => {
                self.log.push(format!("start {name}"));
                self.next_id += 1;
                let state = State::Running {
                    started_at: self.now,
                };
                self.view.containers.push(ContainerView {
                    id: format!("c{}", self.next_id),
                    name: name.clone(),
                    attempt: *attempt,
                    state,
                    stop_by: None,
                    unhealthy_since: None,
                });
            }
            Action::Stop {
                id,
                grace,
                pre_stop,
            } => {
                let c = self
                    .view
                    .containers
                    .iter_mut()
                    .find(|c| c.id == *id)
                    .unwrap();
                let hook = if *pre_stop { "" } else { " without preStop" };
                self.log
                    .push(format!("stop {} in {}s{hook}", c.name, grace.as_secs()));
                c.stop_by = Some(self.now + *grace);
                if !self.stubborn.contains(&c.name.as_str()) {
                    let name = c.name.clone();
                    self.exit(&name, 143);
                }
            }
            Action::Remove { id } => {
                let at = self
                    .view
                    .containers
                    .iter()
                    .position(|c| c.id == *id)
                    .unwrap();
                self.log
                    .push(format!("remove {}", self.view.containers.remove(at).name));
            }
            Action::StopSandbox => {
                self.log.push("stop sandbox".into());
                self.view.sandbox = SandboxView::Stopped;
            }
            Action::DeletePod => self.log.push("delete pod".into()),
        }
    }

    /// Ends the newest instance of a container.
    fn exit(&mut self, name: &str, code: i32) {
        let (now, attempt) = (self.now, self.view.latest(name).unwrap().attempt);
        let c = self
            .view
            .containers
            .iter_mut()
            .find(|c| c.name == name && c.attempt == attempt)
            .unwrap();
        let State::Running { started_at } = c.state else {
            panic!("{name} does not run")
        };
        let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        c.state = State::Exited {
            started_at,
            finished_at: now,
            exit_code: code,
            reason,
        };
    }

    fn advance(&mut self, seconds: i64) {
        self.now += TimeDelta::seconds(seconds);
        for c in self.view.containers.clone() {
            if c.alive() && c.stop_by.is_some_and(|t| t <= self.now) {
                self.exit(&c.name, 137);
            }
        }
    }

    fn container(&self, name: &str) -> &ContainerStatus {
        let all = self
            .status
            .init_container_statuses
            .iter()
            .chain(&self.status.container_statuses)
            .flatten();
        all.into_iter().find(|c| c.name == name).unwrap()
    }

    /// State and last state of a container, abbreviated: `running`, `CrashLoopBackOff`, `exit 3`,
    /// ...
    fn states(&self, name: &str) -> (String, String) {
        let c = self.container(name);
        let short = |s: Option<&k8s_openapi::api::core::v1::ContainerState>| {
            let Some(s) = s else { return String::new() };
            if let Some(t) = &s.terminated {
                let reason = t
                    .reason
                    .as_deref()
                    .filter(|r| !["Error", "Completed"].contains(r));
                return reason.map_or(format!("exit {}", t.exit_code), |r| {
                    format!("exit {} {r}", t.exit_code)
                });
            }
            s.waiting
                .as_ref()
                .map_or("running".to_owned(), |w| w.reason.clone().unwrap())
        };
        (short(c.state.as_ref()), short(c.last_state.as_ref()))
    }

    fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap()
    }

    /// Status and reason of a condition.
    fn condition(&self, type_: &str) -> Option<(&str, &str)> {
        let all = self.status.conditions.iter().flatten();
        all.into_iter()
            .find(|c| c.type_ == type_)
            .map(|c| (c.status.as_str(), c.reason.as_deref().unwrap_or("")))
    }

    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

/// A container without further settings.
fn plain(name: &str) -> Value {
    json!({"name": name, "image": "image"})
}

/// A container with one rule.
fn with_rule(name: &str, action: &str, operator: &str, values: &[i32]) -> Value {
    json!({"name": name, "image": "image", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": action, "exitCodes": {"operator": operator, "values": values}}]})
}

/// A sidecar.
fn sidecar(name: &str) -> Value {
    json!({"name": name, "image": "image", "restartPolicy": "Always"})
}
