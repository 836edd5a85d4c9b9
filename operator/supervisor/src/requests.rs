//! The file that tells the child about a request for a checkpoint: id, reason and deadline (seconds
//! since 1970), separated by spaces.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use lockstep_supervisor_protocol::SaveRequest;

use crate::files;

/// File name in the supervisor's folder.
const FILE: &str = "checkpoint-request";

pub fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

pub fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_file(path(folder)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub fn write(folder: &Path, request: &SaveRequest) -> io::Result<()> {
    let line = format!("{} {} {}\n", request.id, request.reason, request.deadline);
    files::replace(folder, FILE, line.as_bytes())
}
