//! Adds the supervisor to a pod. The node mounts its image, or an init container copies it to a
//! volume. It starts the training container's command (docs/supervisor.md).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, ImageVolumeSource, Lifecycle, PodSpec, Probe,
    ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::names::{
    SUPERVISOR_DIR, SUPERVISOR_IMAGE_DIR, SUPERVISOR_PROGRAM, SUPERVISOR_VOLUME,
};
use lockstep_api::workload::{
    Group, InPlace, SharedMemoryPolicy, SupervisorMode, TrainingWorkloadSpec,
};
use lockstep_supervisor_protocol::{PASSED_SIGNALS, SET_BY_SUPERVISOR};

use super::training::{restart_by_rule, training_container};
use crate::settings::LifecycleSettings;

/// Resources of which the init container requests as much as the training container.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

const SHARED_MEMORY: &str = "/dev/shm";

/// How the supervisor gets into a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// An init container copies it to the volume.
    Copied,
    /// The node mounts its image. Pods with init containers get a copy: its init container lists
    /// shared memory before theirs run.
    Mounted,
}

/// `None`: members run without a supervisor.
pub(crate) fn supervisor_image<'s>(
    settings: &'s LifecycleSettings,
    spec: &TrainingWorkloadSpec,
    group: &Group,
) -> Option<&'s str> {
    let image = settings.supervisor_image.as_deref()?;
    let enabled = spec.failure_policy.in_place.supervisor == SupervisorMode::Auto;
    (enabled && obstacle(settings, group).is_none()).then_some(image)
}

/// Why the training container of a group cannot have a supervisor. `None`: it can.
pub fn obstacle(settings: &LifecycleSettings, group: &Group) -> Option<&'static str> {
    let template = &group.template.0;
    let pod = template.spec.as_ref()?;
    let training = training_container(template)?;
    let container = pod.containers.iter().find(|c| c.name == training)?;
    let mut volumes = pod.volumes.iter().flatten();
    let inits = pod.init_containers.iter().flatten();
    let has_command = container.command.as_ref().is_some_and(|c| !c.is_empty());
    let after_start = container.lifecycle.as_ref().map(|l| l.post_start.is_some());
    let unpassed_signal = stop_signal(container.lifecycle.as_ref())
        .is_some_and(|s| PASSED_SIGNALS.iter().all(|(name, _)| s != *name));
    let terminal = container.tty == Some(true) || container.stdin == Some(true);
    // A paused process listens on no port.
    let mut by_port = [&container.liveness_probe, &container.startup_probe]
        .into_iter()
        .flatten()
        .filter(|p| p.exec.is_none());
    let taken = volumes.any(|v| [SUPERVISOR_VOLUME, SUPERVISOR_PROGRAM].contains(&&*v.name))
        || inits
            .chain(&pod.containers)
            .any(|c| c.name == SUPERVISOR_PROGRAM)
        || mounts(container).any(|path| [SUPERVISOR_DIR, SUPERVISOR_IMAGE_DIR].contains(&path));
    // gVisor and Kata keep the supervisor's socket inside the sandbox.
    let classes = &settings.supervisor_runtime_classes;
    let sandboxed = (pod.runtime_class_name.as_ref()).is_some_and(|c| !classes.contains(c));
    let mute = changes_user_without_kill(pod, container);
    let windows = pod.os.as_ref().is_some_and(|os| os.name == "windows");
    match () {
        () if windows => Some("it runs on Windows"),
        () if sandboxed => Some(
            "its runtimeClassName may hide the supervisor from the agent, and \
             supervisor.runtimeClasses of the manager does not list it",
        ),
        () if !has_command => Some("it sets no command, so what its image starts is not known"),
        () if after_start == Some(true) => Some("it has a postStart hook"),
        () if restart_by_rule(template, training, 0).is_some() => {
            Some("a rule restarts it after exit code 0, for the next of its tasks")
        }
        () if mute => Some(
            "it may change the user of its processes, but lacks capability KILL to signal them",
        ),
        () if unpassed_signal => Some("the supervisor cannot pass on its lifecycle.stopSignal"),
        () if terminal => Some("it has a terminal or standard input"),
        () if by_port.next().is_some() => {
            Some("its liveness or startup probe is not a command, and would fail while it is held")
        }
        () if taken => Some("the pod uses the name lockstep-run, or the volume or folder lockstep"),
        () => None,
    }
}

/// True if the training process may run as another user than the supervisor, which could not send
/// signals to it. An entry point like gosu replaces itself, but the supervisor stays.
fn changes_user_without_kill(pod: &PodSpec, container: &Container) -> bool {
    let own = container.security_context.as_ref();
    let of_pod = pod.security_context.as_ref();
    let user = (own.and_then(|c| c.run_as_user)).or(of_pod.and_then(|c| c.run_as_user));
    let not_root = (own.and_then(|c| c.run_as_non_root)).or(of_pod.and_then(|c| c.run_as_non_root));
    let root = user.unwrap_or(0) == 0 && not_root != Some(true);
    let privileged = own.and_then(|c| c.privileged) == Some(true);
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    let names = |list: &Option<Vec<String>>, name: &str| {
        let mut all = list.iter().flatten();
        all.any(|c| c == "ALL" || c.strip_prefix("CAP_").unwrap_or(c) == name)
    };
    // Runtimes grant SETUID, SETGID and KILL by default.
    let has = |name| capabilities.is_none_or(|c| names(&c.add, name) || !names(&c.drop, name));
    root && !privileged && !has("KILL") && has("SETUID")
}

fn stop_signal(lifecycle: Option<&Lifecycle>) -> Option<&str> {
    lifecycle?.stop_signal.as_deref()
}

fn mounts(container: &Container) -> impl Iterator<Item = &str> {
    container.volume_mounts.iter().flatten().map(path)
}

fn path(mount: &VolumeMount) -> &str {
    mount.mount_path.trim_end_matches('/')
}

/// Must run before environment variables are injected, because the user's variables are kept.
pub(super) fn supervise(
    pod: &mut PodSpec,
    training: &str,
    image: &str,
    delivery: Delivery,
    policy: &InPlace,
) {
    let has_inits = pod.init_containers.iter().flatten().next().is_some();
    let Some(container) = pod.containers.iter_mut().find(|c| c.name == training) else {
        return;
    };
    let mounts = container.volume_mounts.get_or_insert_with(Vec::new);
    let shared_memory = mounts.iter().find_map(read_shared_memory);
    let own = mount(SUPERVISOR_VOLUME, SUPERVISOR_DIR);
    mounts.push(own.clone());
    let volumes = pod.volumes.get_or_insert_with(Vec::new);
    volumes.push(Volume {
        name: SUPERVISOR_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    if delivery == Delivery::Mounted && !has_inits {
        mounts.push(mount(SUPERVISOR_PROGRAM, SUPERVISOR_IMAGE_DIR));
        volumes.push(Volume {
            name: SUPERVISOR_PROGRAM.into(),
            image: Some(ImageVolumeSource {
                reference: Some(image.into()),
                ..ImageVolumeSource::default()
            }),
            ..Volume::default()
        });
        let program = format!("{SUPERVISOR_IMAGE_DIR}/usr/bin/{SUPERVISOR_PROGRAM}");
        wrap(container, &program, &["--dir", SUPERVISOR_DIR], policy);
        return;
    }
    let user = pod.security_context.as_ref().and_then(|c| c.run_as_user);
    let mounts = [Some(own), shared_memory].into_iter().flatten().collect();
    let mut init = copying(image, mounts, user == Some(0));
    init.resources = container.resources.as_ref().and_then(init_resources);
    let inits = pod.init_containers.get_or_insert_with(Vec::new);
    inits.insert(0, init);
    wrap(
        container,
        &format!("{SUPERVISOR_DIR}/{SUPERVISOR_PROGRAM}"),
        &[],
        policy,
    );
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.into(),
        mount_path: path.into(),
        ..VolumeMount::default()
    }
}

/// Starts the command and the probes of a container through the supervisor. `options` apply to each
/// call.
fn wrap(container: &mut Container, program: &str, options: &[&str], policy: &InPlace) {
    let own = container.env.iter().flatten().map(|v| v.name.as_str());
    let kept = own
        .filter(|name| SET_BY_SUPERVISOR.contains(name))
        .flat_map(|name| ["--keep-env", name]);
    let mut exec: Vec<&str> = [program, "exec"].into_iter().chain(kept).collect();
    match policy.shared_memory {
        SharedMemoryPolicy::CleanKnown => {}
        SharedMemoryPolicy::CleanAll => exec.extend(["--clean-shm", "all"]),
        SharedMemoryPolicy::Keep => exec.extend(["--clean-shm", "none"]),
    }
    if let Some(signal) = stop_signal(container.lifecycle.as_ref()) {
        exec.extend(["--stop-signal", signal]);
    }
    let grace = policy.stop_grace_seconds.to_string();
    if policy.stop_grace_seconds > 0 {
        exec.extend(["--stop-grace", &grace]);
    }
    if let Some(path) = &container.termination_message_path {
        exec.extend(["--termination-log", path]);
    }
    container.command = Some(call(&[&exec, options], container.command.take()));
    let delay = Some(after_start(container))
        .filter(|seconds| *seconds > 0)
        .map(|seconds| seconds.to_string());
    for (kind, probe) in [
        ("liveness", &mut container.liveness_probe),
        ("startup", &mut container.startup_probe),
        ("readiness", &mut container.readiness_probe),
    ] {
        if let Some(probe) = probe.as_mut().and_then(|p| p.exec.as_mut()) {
            let words = [program, "probe", kind];
            let mut options = options.to_vec();
            if let Some(delay) = delay.as_deref().filter(|_| kind == "liveness") {
                options.extend(["--after-start", delay]);
            }
            probe.command = Some(call(&[&words, &options], probe.command.take()));
        }
    }
}

/// Seconds from the start of the training process to its first counted liveness probe. After a
/// restart in the container, the kubelet neither waits nor runs the startup probe.
fn after_start(container: &Container) -> i32 {
    let delay = |probe: &Probe| probe.initial_delay_seconds.unwrap_or_default();
    let startup = container.startup_probe.as_ref().map(|probe| {
        let period = probe.period_seconds.unwrap_or(10);
        let tries = period.saturating_mul(probe.failure_threshold.unwrap_or(3));
        delay(probe).saturating_add(tries)
    });
    let liveness = container.liveness_probe.as_ref().map(delay);
    (liveness.unwrap_or_default()).saturating_add(startup.unwrap_or_default())
}

fn call(supervisor: &[&[&str]], command: Option<Vec<String>>) -> Vec<String> {
    let words = [supervisor, &[&["--"]]]
        .concat()
        .concat()
        .into_iter()
        .map(str::to_owned);
    words.chain(command.unwrap_or_default()).collect()
}

/// Mount by which the init container lists the shared memory.
fn read_shared_memory(mount: &VolumeMount) -> Option<VolumeMount> {
    // The kubelet would create a sub path before the user's init containers.
    let whole = mount.sub_path.is_none() && mount.sub_path_expr.is_none();
    (whole && path(mount) == SHARED_MEMORY).then(|| VolumeMount {
        read_only: Some(true),
        mount_propagation: None,
        ..mount.clone()
    })
}

/// Resources of the init container, which runs before the training container. With equal amounts,
/// the pod requests no more, keeps its QoS class, and satisfies the same `LimitRange`s.
fn init_resources(training: &ResourceRequirements) -> Option<ResourceRequirements> {
    let copied = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let amounts: BTreeMap<_, _> = amounts
            .iter()
            .flatten()
            .filter(|(name, _)| RESOURCES.contains(&name.as_str()))
            .map(|(n, q)| (n.clone(), q.clone()))
            .collect();
        (!amounts.is_empty()).then_some(amounts)
    };
    let (requests, limits) = (copied(&training.requests), copied(&training.limits));
    (requests.is_some() || limits.is_some()).then(|| ResourceRequirements {
        requests,
        limits,
        ..ResourceRequirements::default()
    })
}

/// Satisfies Pod Security `restricted`. `root`: containers of the pod run as root by default.
fn copying(image: &str, mounts: Vec<VolumeMount>, root: bool) -> Container {
    Container {
        name: SUPERVISOR_PROGRAM.into(),
        image: Some(image.into()),
        args: Some(vec!["init".into(), SUPERVISOR_DIR.into()]),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                ..Capabilities::default()
            }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: (!root).then_some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests;
