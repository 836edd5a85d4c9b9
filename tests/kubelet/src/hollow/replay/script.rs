//! What happens inside the containers of each scenario: programs, from the recorded commands, and
//! the steps of the recording that somebody took on a node.

use crate::runtime::FAILED_MOUNT;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};

/// What a step does on a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// A process ends with this code.
    Exit(&'static str, &'static str, i32),
    /// The runtime kills a container.
    Kill(&'static str, &'static str),
    /// The liveness probe fails from now on, and the process goes on.
    Unhealthy(&'static str, &'static str),
    /// The kubelet is stopped.
    Silence(usize),
    /// It goes on.
    Return(usize),
    /// Its effect came over the API and is in the watch events, or none is recorded.
    Recorded,
}

use Effect::{Exit, Kill, Recorded, Return, Silence, Unhealthy};

/// Effects of a scenario's steps, those that create pods left out. None: there is no script.
///
/// Of a scenario about kube-scheduler the kubelet's part is replayed: what follows a binding or a
/// deletion, both taken from the recording.
pub(super) fn effects(scenario: &str) -> Option<std::vec::IntoIter<Effect>> {
    let effects = match scenario {
        "bound-by-hand-without-resources"
        | "bound-by-hand-wrong-affinity"
        | "crash-back-off"
        | "image-cannot-be-pulled"
        | "init-container-fails"
        | "missing-binary"
        | "missing-binary-on-failure"
        | "missing-config-map"
        | "missing-image"
        | "missing-volume-config-map"
        | "oom"
        | "oom-of-a-child"
        | "pod-active-deadline"
        | "restart-all-repeatedly"
        | "rule-restart"
        | "scheduler-preempts"
        | "startup-and-readiness" => vec![],
        "delete-exit-zero-on-term"
        | "delete-ignoring-term"
        | "evict-exit-seven-on-term"
        | "no-execute-taint"
        | "scheduler-refuses-pinned" => vec![Recorded],
        "exit-zero-never" => vec![Exit("p", "a", 0)],
        "exit-code-never"
        | "one-of-two-fails-never"
        | "restart-all"
        | "restart-all-long-grace"
        | "rule-does-not-match" => vec![Exit("p", "a", 3)],
        "kubelet-stops-and-returns" => vec![Silence(2), Kill("p", "a"), Return(2)],
        "liveness-fails" => vec![Unhealthy("p", "a")],
        "nominated-from-outside" => vec![Recorded, Recorded],
        "restart-all-killed-by-runtime" => vec![Kill("p", "a"); 3],
        "restart-all-second-container-fails-meanwhile" => {
            vec![Exit("p", "a", 3), Exit("p", "b", 4)]
        }
        "rule-restart-killed-by-runtime" => vec![Kill("p", "a"); 2],
        // The recording ends before anything of the last step is shown.
        "runtime-restarts" => vec![Recorded, Recorded, Recorded],
        "sidecar-dies" => vec![Exit("p", "s", 9), Exit("p", "a", 0)],
        _ => return None,
    };
    Some(effects.into_iter())
}

/// Why the kubelet refuses the pods of a scenario, where hollow nodes do not see it by themselves.
pub(super) fn refusal(scenario: &str) -> Option<&'static str> {
    (scenario == "bound-by-hand-wrong-affinity").then_some("NodeAffinity")
}

/// The spec with what its programs do, for the simulated runtime.
pub(super) fn with_behaviour(spec: &PodSpec) -> PodSpec {
    let mut spec = spec.clone();
    let init = spec.init_containers.iter_mut().flatten();
    for c in init.chain(&mut spec.containers) {
        let env = behaviour(c).into_iter().map(|(name, value)| EnvVar {
            name: name.into(),
            value: Some(value),
            value_from: None,
        });
        c.env = Some(env.collect());
        delay_probes(c);
    }
    spec
}

/// What a recorded command does. The shell is process 1 of its container: without a trap SIGTERM
/// does nothing.
fn behaviour(c: &Container) -> Vec<(&'static str, String)> {
    let image = c.image.as_deref().unwrap_or_default();
    let command = c.command.iter().flatten().map(String::as_str);
    let words: Vec<&str> = command.collect();
    let mut out = vec![("HOLLOW_ON_TERM", "ignore".to_owned())];
    if image.ends_with("/none:1") {
        let reason = if c.image_pull_policy.as_deref() == Some("Never") {
            "ErrImageNeverPull"
        } else {
            "ErrImagePull"
        };
        out.push(("HOLLOW_NOT_CREATED", reason.into()));
    } else if c.env_from.is_some() {
        out.push(("HOLLOW_NOT_CREATED", "CreateContainerConfigError".into()));
    } else if c.volume_mounts.is_some() {
        out.push(("HOLLOW_NOT_CREATED", FAILED_MOUNT.into()));
    } else if words == ["/no/such"] {
        out.push(("HOLLOW_EXIT", "128".into()));
        out.push(("HOLLOW_REASON", "StartError".into()));
    }
    let ["sh", "-c", script] = words[..] else {
        return out;
    };
    let (trap, body) = match script.strip_prefix("trap '") {
        Some(rest) => rest.split_once("' TERM; ").expect("a trap of SIGTERM"),
        None => ("", script),
    };
    if !trap.is_empty() {
        let (wait, code) = run(trap);
        out[0].1 = code.unwrap_or(0).to_string();
        out.push(("HOLLOW_TERM_MILLIS", (wait + 50).to_string()));
    }
    // Until a step ends it.
    if body.contains("while true") || body == "x" {
        return out;
    }
    let (wait, code) = run(body);
    let starved = body.contains("tail /dev/zero");
    // `tail` needs about half a second to fill the memory that its container may have.
    let wait = if starved { wait + 500 } else { wait };
    let code = code.unwrap_or(if starved { 137 } else { 0 });
    out.push(("HOLLOW_RUN_MILLIS", wait.to_string()));
    out.push(("HOLLOW_EXIT", code.to_string()));
    if starved {
        out.push(("HOLLOW_REASON", "OOMKilled".into()));
    }
    out
}

/// How long a list of `sleep` takes, in milliseconds, and the code of its `exit`.
fn run(script: &str) -> (u64, Option<i32>) {
    let (mut wait, mut code) = (0, None);
    for command in script.split("; ") {
        match command.split_once(' ') {
            Some(("sleep", seconds)) => {
                let seconds: f64 = seconds.parse().expect("a number of seconds");
                wait += (seconds * 1_000.0) as u64;
            }
            Some(("exit", status)) => code = Some(status.parse().expect("an exit code")),
            Some(("tail", "/dev/zero")) => {}
            _ => assert!(command.is_empty(), "unknown command: {command}"),
        }
    }
    (wait, code)
}

/// Probes of hollow nodes pass when they first run, so they run first at the time at which the
/// recorded program lets them pass: `touch /tmp/s` after two seconds, found by the probe's next
/// run, and one run later `/tmp/r`.
fn delay_probes(c: &mut Container) {
    if let Some(startup) = &mut c.startup_probe {
        startup.initial_delay_seconds = Some(3);
        if let Some(readiness) = &mut c.readiness_probe {
            readiness.initial_delay_seconds = Some(4);
        }
    }
}
