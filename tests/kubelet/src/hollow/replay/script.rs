//! Programs of recorded containers: their commands, and commands that a step runs in them, as
//! behaviour of the simulated runtime.

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, Probe, SleepAction};

use crate::runtime::FAILED_MOUNT;

/// Effect of a command that a step runs in a container.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// The first process ends with this code.
    Exit(i32),
    /// Probes fail from now on. The process continues.
    ProbesFail,
    /// Probes succeed from now on.
    ProbesSucceed,
}

/// The effect of a shell command. Programs read their exit code from /tmp/c. Probes need /tmp/ok and
/// fail on /tmp/bad.
pub(super) fn effect(command: &str) -> Option<Effect> {
    match command.split(' ').collect::<Vec<_>>()[..] {
        ["echo", code, ">", "/tmp/c"] => Some(Effect::Exit(code.parse().ok()?)),
        ["touch", "/tmp/bad"] | ["rm", "/tmp/ok"] => Some(Effect::ProbesFail),
        ["rm", "/tmp/bad"] | ["touch", "/tmp/ok"] => Some(Effect::ProbesSucceed),
        _ => None,
    }
}

/// Reason with which a kubelet refuses a pod, in addition to the reasons of hollow nodes. No label
/// of the nodes matches the selector of a recorded pod that is bound at creation.
pub(super) fn refusal(spec: &PodSpec) -> Option<&'static str> {
    (spec.node_name.is_some() && spec.node_selector.is_some()).then_some("NodeAffinity")
}

/// The spec with the behaviour of its programs for the simulated runtime.
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
        simplify_hook(c);
    }
    spec
}

/// Behaviour of a recorded command. The shell is process 1 of its container, so it ignores SIGTERM
/// without a trap.
fn behaviour(c: &Container) -> Vec<(&'static str, String)> {
    let image = c.image.as_deref().unwrap_or_default();
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
    } else if c.command.iter().flatten().any(|word| word == "/no/such") {
        out.push(("HOLLOW_EXIT", "128".into()));
        out.push(("HOLLOW_REASON", "StartError".into()));
    }
    let Some(script) = shell_script(c) else {
        return out;
    };
    let (trap, body) = match script.strip_prefix("trap '") {
        Some(rest) => rest.split_once("' ").expect("a trap"),
        None => ("", script),
    };
    // The API server drops other stop signals if a feature gate has its default, which is off.
    if body.starts_with("TERM; ") {
        let (wait, code) = run(trap);
        out[0].1 = code.unwrap_or(0).to_string();
        out.push(("HOLLOW_TERM_MILLIS", (wait + 50).to_string()));
    }
    // Only a step ends it.
    if body.contains("while true") || body == "x" {
        return out;
    }
    let (wait, code) = run(body);
    let starved = body.contains("tail /dev/zero");
    // `tail` needs about half a second to fill its container's memory.
    let wait = if starved { wait + 500 } else { wait };
    let code = code.unwrap_or(if starved { 137 } else { 0 });
    out.push(("HOLLOW_RUN_MILLIS", wait.to_string()));
    out.push(("HOLLOW_EXIT", code.to_string()));
    if starved {
        out.push(("HOLLOW_REASON", "OOMKilled".into()));
    }
    out
}

fn shell_script(c: &Container) -> Option<&str> {
    match c.command.as_deref()? {
        [sh, flag, script] if sh == "sh" && flag == "-c" => Some(script),
        _ => None,
    }
}

/// Duration of a list of `sleep` commands in milliseconds, and the code of its `exit`.
fn run(script: &str) -> (u64, Option<i32>) {
    let (mut wait, mut code) = (0, None);
    for command in script.split("; ") {
        match command.split_once(' ') {
            Some(("sleep", seconds)) => {
                let seconds: f64 = seconds.parse().expect("a number of seconds");
                wait += (seconds * 1_000.0) as u64;
            }
            Some(("exit", status)) => code = Some(status.parse().expect("an exit code")),
            Some(("tail", "/dev/zero") | ("touch", _)) => {}
            _ => assert!(command.is_empty(), "unknown command: {command}"),
        }
    }
    (wait, code)
}

/// Probes of hollow nodes succeed at their first run. A probe that lists a file first runs one
/// second after the program touches that file.
fn delay_probes(c: &mut Container) {
    let script = shell_script(c).unwrap_or_default().to_owned();
    let probes = [&mut c.startup_probe, &mut c.readiness_probe];
    for probe in probes.into_iter().flatten() {
        let touch = listed_file(probe).map(|file| format!("touch {file}"));
        let before = touch.and_then(|touch| Some(script.split_once(&touch)?.0.to_owned()));
        if let Some(before) = before {
            let seconds = i32::try_from(run(&before).0 / 1_000).expect("seconds");
            probe.initial_delay_seconds = Some(seconds + 1);
        }
    }
}

fn listed_file(probe: &Probe) -> Option<&str> {
    match probe.exec.as_ref()?.command.as_deref()? {
        [ls, file] if ls == "ls" => Some(file),
        _ => None,
    }
}

/// Hollow nodes run no commands in hooks: a hook that runs `sleep` becomes a sleep.
fn simplify_hook(c: &mut Container) {
    let hook = c.lifecycle.as_mut().and_then(|l| l.pre_stop.as_mut());
    let Some(hook) = hook else { return };
    if let Some(exec) = hook.exec.take() {
        let command = exec.command.unwrap_or_default().join(" ");
        let seconds = command.strip_prefix("sleep ");
        let seconds = seconds.and_then(|s| s.parse().ok()).expect("a sleep");
        hook.sleep = Some(SleepAction { seconds });
    }
}
