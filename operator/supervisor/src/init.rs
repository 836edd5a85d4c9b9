//! `lockstep-run init DIR`: the init container copies the supervisor into the shared volume.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::shared_memory::SharedMemory;

const PROGRAM: &str = "lockstep-run";

/// Copies this program into the folder, executable for all users. Init containers can run again
/// while the program in the folder runs, so a second copy is no error. This is the first init
/// container, so all files in shared memory belong to ended containers.
pub fn init(folder: &Path) -> io::Result<()> {
    let next = folder.join(".lockstep-run.next");
    fs::copy("/proc/self/exe", &next)?;
    fs::set_permissions(&next, Permissions::from_mode(0o755))?;
    fs::rename(next, folder.join(PROGRAM))?;
    SharedMemory::of_container(folder).map_or(Ok(()), |memory| memory.note_restart())
}
