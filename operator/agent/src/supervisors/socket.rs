//! The way to a supervisor's socket, through the kubelet's folder of its pod.
//!
//! What is in the volume belongs to the tenant: the socket may be a link to anywhere, another kind
//! of file, or one that is exchanged between two looks. So each step of the way is one name that is
//! opened beneath the folder before it and is no link; what is connected to is the very file that
//! was looked at. That is what `openat2` with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS does for a
//! longer path, on every kernel and under every seccomp profile.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use lockstep_api::names::SUPERVISOR_VOLUME;
use lockstep_wire::SOCKET;
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use thiserror::Error;
use tokio::net::UnixStream;

/// Where the kubelet keeps the volumes of a pod that are emptyDirs, beneath the pod's folder.
const EMPTY_DIRS: [&str; 2] = ["volumes", "kubernetes.io~empty-dir"];
/// Longest UID of a pod; a kubelet's are 36 or 32 characters.
const MAX_UID: usize = 64;

/// Why a socket was not connected to.
#[derive(Debug, Error)]
pub(super) enum SocketError {
    /// Nothing is there or listens there, yet or any more.
    #[error("{name}: {why}")]
    Absent { name: String, why: io::Error },
    /// What is there is not what a supervisor makes.
    #[error("{name} is {what}")]
    Wrong { name: String, what: &'static str },
    /// The kernel refuses.
    #[error("{name}: {why}")]
    Failed { name: String, why: io::Error },
}

/// Connects to the supervisor of the pod. `pods` is the kubelet's folder of pods.
pub(super) async fn connect(pods: &Path, pod_uid: &str) -> Result<UnixStream, SocketError> {
    let socket = find(pods, pod_uid)?;
    // The path of a socket can have 107 bytes; this one is short, and cannot come to mean another.
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))
        .await
        .map_err(|why| match why.kind() {
            io::ErrorKind::ConnectionRefused => absent(SOCKET, why),
            _ => failed(SOCKET, why),
        })
}

fn find(pods: &Path, pod_uid: &str) -> Result<OwnedFd, SocketError> {
    if !is_uid(pod_uid) {
        return Err(SocketError::Wrong {
            name: format!("{pod_uid:?}"),
            what: "no UID of a pod",
        });
    }
    // This one is the administrator's and may be a link.
    let mut folder = open(
        pods,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|why| step_failed(&pods.display().to_string(), why))?;
    for name in [pod_uid]
        .into_iter()
        .chain(EMPTY_DIRS)
        .chain([SUPERVISOR_VOLUME])
    {
        folder = step(&folder, name, OFlags::DIRECTORY)?;
    }
    let socket = step(&folder, SOCKET, OFlags::empty())?;
    let stat = fstat(&socket).map_err(|why| step_failed(SOCKET, why))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok(socket),
        _ => Err(SocketError::Wrong {
            name: SOCKET.to_owned(),
            what: "no socket",
        }),
    }
}

/// Opens one name in a folder without reading, following or waking anything.
fn step(folder: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, SocketError> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty()).map_err(|why| step_failed(name, why))
}

fn step_failed(name: &str, why: Errno) -> SocketError {
    match why {
        Errno::NOENT => absent(name, why.into()),
        Errno::NOTDIR | Errno::LOOP => SocketError::Wrong {
            name: name.to_owned(),
            what: "no folder",
        },
        _ => failed(name, why.into()),
    }
}

fn absent(name: &str, why: io::Error) -> SocketError {
    let name = name.to_owned();
    SocketError::Absent { name, why }
}

fn failed(name: &str, why: io::Error) -> SocketError {
    let name = name.to_owned();
    SocketError::Failed { name, why }
}

/// Whether the text can be the UID of a pod: it becomes the name of a folder.
fn is_uid(text: &str) -> bool {
    (1..=MAX_UID).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Whether the folder of pods is there, and is that of the kubelet that runs this pod.
pub(super) fn is_there(pods: &Path, own_pod_uid: Option<&str>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(pods, flags, Mode::empty())?;
    if let Some(uid) = own_pod_uid {
        step(&folder, uid, OFlags::DIRECTORY).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_the_uid_of_a_pod_becomes_the_name_of_a_folder() {
        for uid in [
            "0f3b6a51-7c1e-4a3e-9d0a-0f3b6a517c1e",
            "1a2b3c4d5e6f708192a3b4c5d6e7f809",
            "p1",
        ] {
            assert!(is_uid(uid), "{uid}");
        }
        let long = "a".repeat(MAX_UID + 1);
        for text in [
            "", ".", "..", "../p1", "p1/..", "/etc", "p1\0", "p1\n", "p.1", "ü", &long,
        ] {
            assert!(!is_uid(text), "{text:?}");
            let error = find(Path::new("/"), text).unwrap_err();
            assert!(error.to_string().ends_with("is no UID of a pod"), "{error}");
        }
    }
}
