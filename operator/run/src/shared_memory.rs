//! What a child leaves in `/dev/shm`: a process that is killed cannot unlink its segments, and each
//! attempt adds some.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Inode of the IPC namespace that the machine boots with (`PROC_IPC_INIT_INO` of the kernel).
const HOST_IPC: u64 = 0xEFFF_FFFF;

/// The folder, and what was in it when the child started.
#[derive(Debug)]
pub struct SharedMemory {
    folder: PathBuf,
    before: BTreeSet<(OsString, u64)>,
}

impl SharedMemory {
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            before: BTreeSet::new(),
        }
    }

    /// `/dev/shm` of a container; none in a pod with `hostIPC`, where other pods' files are in it,
    /// too.
    pub fn of_container() -> Option<Self> {
        let ipc = fs::metadata("/proc/self/ns/ipc").ok()?;
        (ipc.ino() != HOST_IPC).then(|| Self::new(Path::new("/dev/shm")))
    }

    /// Remembers what is there.
    pub fn remember(&mut self) {
        self.before = self.own_files().collect();
    }

    /// Unlinks files of this user that have appeared since [`SharedMemory::remember`], and returns
    /// how many.
    pub fn clean(&self) -> usize {
        let new = self.own_files().filter(|file| !self.before.contains(file));
        new.filter(|(name, _)| fs::remove_file(self.folder.join(name)).is_ok())
            .count()
    }

    /// Names and inodes of the regular files of this user.
    fn own_files(&self) -> impl Iterator<Item = (OsString, u64)> {
        let user = geteuid().as_raw();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let metadata = entry.metadata().ok()?;
            let own = metadata.is_file() && metadata.uid() == user;
            own.then(|| (entry.file_name(), metadata.ino()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::SharedMemory;

    #[test]
    fn only_files_that_appeared_since_are_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("before"), "").unwrap();
        let mut memory = SharedMemory::new(folder.path());
        memory.remember();
        fs::write(path("before"), "changed").unwrap();
        fs::write(path("nccl-1"), "").unwrap();
        fs::write(path("sem.x"), "").unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink(path("before"), path("link")).unwrap();

        assert_eq!(memory.clean(), 2);
        let left: BTreeSet<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["before", "folder", "link"].map(Into::into).into());
    }
}
