//! The path to a supervisor's socket, through the kubelet's folder of its pod.
//!
//! The tenant owns the volume. The socket may be a symlink, a file of another kind, or replaced
//! between check and use. So each step opens one name beneath the previous folder without following
//! symlinks, and the agent connects to the checked file itself. `openat2` with RESOLVE_BENEATH and
//! RESOLVE_NO_SYMLINKS would do the same in one call, but not on every kernel and under every
//! seccomp profile.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use lockstep_api::names::SUPERVISOR_VOLUME;
use lockstep_supervisor_protocol::SOCKET;
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use thiserror::Error;
use tokio::net::UnixStream;

/// The kubelet's folder for emptyDir volumes, beneath the pod's folder.
const EMPTY_DIRS: [&str; 2] = ["volumes", "kubernetes.io~empty-dir"];
/// Longest accepted UID of a pod; UIDs of a kubelet have 36 or 32 characters.
const MAX_UID: usize = 64;

#[derive(Debug, Error)]
pub(super) enum SocketError {
    /// The socket does not exist, or has no listener.
    #[error("{name}: {why}")]
    Absent { name: String, why: io::Error },
    /// The file is of a kind that no supervisor creates.
    #[error("{name} is {what}")]
    Wrong { name: String, what: &'static str },
    #[error("{name}: {why}")]
    Failed { name: String, why: io::Error },
}

/// Connects to the supervisor of the pod. `pods` is the kubelet's folder of pods.
pub(super) async fn connect(pods: &Path, pod_uid: &str) -> Result<UnixStream, SocketError> {
    let socket = find(pods, pod_uid)?;
    // A socket path is limited to 107 bytes. This short path refers to the checked file.
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
    // The administrator owns this folder, so it may be a symlink.
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

/// Opens one name in a folder with O_PATH and O_NOFOLLOW, without reading it.
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

/// True if the text can be a pod's UID. The UID becomes a folder name.
fn is_uid(text: &str) -> bool {
    (1..=MAX_UID).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Checks that the folder of pods exists and belongs to the kubelet of this pod.
pub(super) fn check_folder(pods: &Path, own_pod_uid: Option<&str>) -> io::Result<()> {
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
