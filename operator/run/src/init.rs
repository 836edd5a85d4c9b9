//! `lockstep-run init DIR`: the init container puts the supervisor into the volume that it shares
//! with the others.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::shared_memory::SharedMemory;

/// Name of the program in the folder.
const PROGRAM: &str = "lockstep-run";

/// Copies this program into the folder, for any user to execute. Again is no error: init containers
/// can run again, also while the program in the folder runs. It comes before all others, so what is in
/// shared memory then is of containers that have ended.
pub fn init(folder: &Path) -> io::Result<()> {
    let next = folder.join(".lockstep-run.next");
    fs::copy("/proc/self/exe", &next)?;
    fs::set_permissions(&next, Permissions::from_mode(0o755))?;
    fs::rename(next, folder.join(PROGRAM))?;
    SharedMemory::of_container(folder).map_or(Ok(()), |memory| memory.note_restart())
}
