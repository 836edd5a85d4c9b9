//! Starts the training process.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use lockstep_supervisor_protocol::Release;
use rustix::process::Pid;

use crate::{progress, requests};

/// The program does not exist; the same code as in a shell.
const NOT_FOUND: u8 = 127;
/// The program is not executable; the same code as in a shell.
const NOT_EXECUTABLE: u8 = 126;

/// torchrun separates the rendezvous of jobs by this variable.
const RENDEZVOUS: &str = "PET_RDZV_ID";

/// Seconds that torchrun gives its workers after SIGTERM.
const SHUTDOWN_TIMEOUT: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
const SIGTERM: u8 = 15;

#[derive(Debug)]
pub struct NotStarted {
    pub code: u8,
    pub message: String,
}

/// Starts the command with these variables in addition to the supervisor's environment.
///
/// The child gets its own process group, because scripts kill their group on exit and must not kill
/// the supervisor. Signal handlers and the signal mask are reset.
pub fn start(
    command: &[OsString],
    environment: Vec<(&'static str, OsString)>,
) -> Result<Pid, NotStarted> {
    let (program, args) = command.split_first().ok_or_else(|| NotStarted {
        code: NOT_FOUND,
        message: "there is no command".to_owned(),
    })?;
    let child = Command::new(program)
        .args(args)
        .envs(environment)
        .process_group(0)
        .spawn();
    // Dropping the handle neither waits nor kills: the supervisor reaps the child together with its
    // orphans.
    let child = child.map_err(|error| NotStarted {
        code: code_of(&error),
        message: format!("{}: {error}", program.display()),
    })?;
    Ok(Pid::from_child(&child))
}

/// Exit code for a program that did not start.
pub fn code_of(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    }
}

/// Variables that the child of this attempt gets in addition to, or instead of, those of the pod.
/// `pod` reads a variable of the pod. `folder` has the files of the supervisor. `keep` lists the variables that the user's manifest sets.
pub fn environment(
    release: &Release,
    pod: impl Fn(&str) -> Option<OsString>,
    folder: &Path,
    keep: &[OsString],
) -> Vec<(&'static str, OsString)> {
    let attempt = release.attempt.to_string();
    let mut all: Vec<(&'static str, OsString)> = vec![
        ("LOCKSTEP_ATTEMPT", OsString::from(&attempt)),
        ("LOCKSTEP_PEERS", (*release.peers).into()),
        ("LOCKSTEP_PROGRESS", progress::path(folder).into()),
        ("LOCKSTEP_CHECKPOINT_REQUEST", requests::path(folder).into()),
        // Words after step and checkpoint are understood.
        ("LOCKSTEP_PROGRESS_FORMAT", "2".into()),
    ];
    if let Some(delivery) = release.checkpoint
        && delivery.signal == Some(SIGTERM)
        && pod(SHUTDOWN_TIMEOUT).is_none()
    {
        let seconds = delivery.timeout_seconds.to_string();
        all.push((SHUTDOWN_TIMEOUT, seconds.into()));
    }
    if release.world > 0 {
        for name in [
            "LOCKSTEP_MEMBERS",
            "PET_NNODES",
            "JAX_NUM_PROCESSES",
            "WORLD_SIZE",
        ] {
            all.push((name, release.world.to_string().into()));
        }
    }
    if let Some(rank) = release.rank {
        for name in ["PET_NODE_RANK", "NODE_RANK", "JAX_PROCESS_ID", "RANK"] {
            all.push((name, rank.to_string().into()));
        }
    }
    if let Some(coordinator) = release.coordinator {
        // Only with a coordinator. Without it, all attempts use the same rendezvous address, and
        // members without a supervisor use the pod's id there.
        let mut id = pod(RENDEZVOUS).unwrap_or_default();
        if !id.is_empty() {
            id.push("-");
        }
        id.push(&attempt);
        all.push((RENDEZVOUS, id));
        let (ip, port) = (coordinator.ip.to_string(), coordinator.port.to_string());
        for (name, value) in [
            ("MASTER_ADDR", &ip),
            ("PET_MASTER_ADDR", &ip),
            ("MASTER_PORT", &port),
            ("PET_MASTER_PORT", &port),
        ] {
            all.push((name, value.into()));
        }
        let address = SocketAddr::new(coordinator.ip, coordinator.port).to_string();
        for name in ["JAX_COORDINATOR_ADDRESS", "PET_RDZV_ENDPOINT"] {
            all.push((name, OsString::from(&address)));
        }
    }
    // Pods with one process per member have these variables. In other pods, launchers set them for
    // each process.
    let absent = |name: &str| ["RANK", "WORLD_SIZE"].contains(&name) && pod(name).is_none();
    let kept = |name: &str| keep.iter().any(|kept| kept == OsStr::new(name));
    all.retain(|(name, _)| !absent(name) && !kept(name));
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::net::IpAddr;
    use std::path::Path;

    use lockstep_supervisor_protocol::{Release, Rendezvous, SET_BY_SUPERVISOR, SavePolicy, Text};

    use super::{SHUTDOWN_TIMEOUT, environment as environment_of};

    fn release() -> Release {
        let coordinator = Some(Rendezvous {
            ip: IpAddr::from([10, 0, 0, 7]),
            port: 29_503,
        });
        Release {
            attempt: 3,
            coordinator,
            world: 32,
            rank: Some(6),
            peers: Text::cut("workers-0:0-31"),
            progress: None,
            checkpoint: None,
        }
    }

    fn environment(
        release: &Release,
        pod: &[(&str, &str)],
        keep: &[OsString],
    ) -> Vec<(&'static str, OsString)> {
        let value = |name: &str| pod.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        environment_of(release, value, Path::new("/lockstep"), keep)
    }

    fn text(environment: Vec<(&'static str, OsString)>) -> BTreeMap<&'static str, String> {
        environment
            .into_iter()
            .map(|(name, value)| (name, value.into_string().unwrap()))
            .collect()
    }

    #[test]
    fn the_child_learns_its_attempt_and_where_to_rendezvous() {
        let pod = [("PET_RDZV_ID", "uid"), ("RANK", "1"), ("WORLD_SIZE", "2")];
        let found = text(environment(&release(), &pod, &[]));
        let expected = [
            ("LOCKSTEP_ATTEMPT", "3"),
            (
                "LOCKSTEP_CHECKPOINT_REQUEST",
                "/lockstep/checkpoint-request",
            ),
            ("LOCKSTEP_PEERS", "workers-0:0-31"),
            ("LOCKSTEP_MEMBERS", "32"),
            ("LOCKSTEP_PROGRESS", "/lockstep/progress"),
            ("LOCKSTEP_PROGRESS_FORMAT", "2"),
            ("JAX_COORDINATOR_ADDRESS", "10.0.0.7:29503"),
            ("JAX_NUM_PROCESSES", "32"),
            ("JAX_PROCESS_ID", "6"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "29503"),
            ("NODE_RANK", "6"),
            ("PET_MASTER_ADDR", "10.0.0.7"),
            ("PET_MASTER_PORT", "29503"),
            ("PET_NNODES", "32"),
            ("PET_NODE_RANK", "6"),
            ("PET_RDZV_ENDPOINT", "10.0.0.7:29503"),
            ("PET_RDZV_ID", "uid-3"),
            ("RANK", "6"),
            ("WORLD_SIZE", "32"),
        ];
        assert_eq!(
            found,
            expected
                .map(|(name, value)| (name, value.to_owned()))
                .into()
        );
        assert!(
            found.into_keys().eq(SET_BY_SUPERVISOR),
            "of these the manager asks to keep what the user sets"
        );
    }

    #[test]
    fn what_the_release_does_not_say_stays_as_the_pod_has_it() {
        let bare = Release {
            coordinator: None,
            rank: None,
            world: 0,
            ..release()
        };
        let found = text(environment(&bare, &[("PET_RDZV_ID", "uid")], &[]));
        let names: Vec<&str> = found.into_keys().collect();
        assert_eq!(
            names,
            [
                "LOCKSTEP_ATTEMPT",
                "LOCKSTEP_CHECKPOINT_REQUEST",
                "LOCKSTEP_PEERS",
                "LOCKSTEP_PROGRESS",
                "LOCKSTEP_PROGRESS_FORMAT"
            ]
        );
    }

    #[test]
    fn torchrun_waits_for_a_checkpoint_on_sigterm_unless_the_pod_says_otherwise() {
        let value = |signal, pod: &[(&str, &str)]| {
            let checkpoint = SavePolicy {
                signal,
                timeout_seconds: 120,
                hold_stop_seconds: 0,
            };
            let release = Release {
                checkpoint: Some(checkpoint),
                ..release()
            };
            text(environment(&release, pod, &[])).remove(SHUTDOWN_TIMEOUT)
        };
        assert_eq!(value(Some(15), &[]).as_deref(), Some("120"));
        assert_eq!(value(Some(15), &[(SHUTDOWN_TIMEOUT, "9")]), None);
        assert_eq!(value(Some(10), &[]), None);
    }

    #[test]
    fn variables_of_the_manifest_are_kept() {
        let found = text(environment(
            &release(),
            &[],
            &["MASTER_ADDR".into(), "MASTER_PORT".into()],
        ));
        assert!(!found.contains_key("MASTER_ADDR") && !found.contains_key("MASTER_PORT"));
        assert_eq!(found["PET_MASTER_ADDR"], "10.0.0.7");
        let launcher_sets = ["RANK", "WORLD_SIZE"];
        assert!(launcher_sets.iter().all(|name| !found.contains_key(name)));
    }
}
