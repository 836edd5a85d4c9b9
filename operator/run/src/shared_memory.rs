//! What a child leaves in `/dev/shm`: a process that is killed cannot unlink its segments, and each
//! attempt adds some.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::process::geteuid;

use crate::files;

/// Inode of the IPC namespace that the machine boots with (`PROC_IPC_INIT_INO` of the kernel).
const HOST_IPC: u64 = 0xEFFF_FFFF;

/// File name in the supervisor's folder, which outlives the container as `/dev/shm` does: both are the
/// pod's.
const FILE: &str = "shared-memory";
/// Beside it, from when all containers of the pod restart until a child starts: what was there before
/// the other init containers ran again.
const AT_RESTART: &str = "shared-memory-at-restart";
/// A list of this many bytes is not read back: some of it may be missing.
const LONGEST: u64 = 1 << 20;
/// More files are not noted when all containers restart: the container that does it has 16 MiB.
const MOST: usize = 10_000;

/// A file: its inode and its name.
type Entry = (u64, OsString);

/// The folder, and what was in it when the child started.
#[derive(Debug)]
pub struct SharedMemory {
    folder: PathBuf,
    /// The supervisor's folder.
    own: PathBuf,
    /// None: no child has started in this pod.
    before: Option<BTreeSet<Entry>>,
    /// Where all containers have restarted since: what is newer is none of the child's.
    at_restart: Option<BTreeSet<Entry>>,
}

impl SharedMemory {
    /// `own`: the supervisor's folder, where one before it may have left what it remembered.
    pub fn new(folder: &Path, own: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            own: own.to_owned(),
            before: read(&own.join(FILE)),
            // One that cannot be read leaves everything in place.
            at_restart: fs::symlink_metadata(own.join(AT_RESTART))
                .is_ok()
                .then(|| read(&own.join(AT_RESTART)).unwrap_or_default()),
        }
    }

    /// `/dev/shm` of a container; none in a pod with `hostIPC`, where other pods' files are in it,
    /// too.
    pub fn of_container(own: &Path) -> Option<Self> {
        let ipc = fs::metadata("/proc/self/ns/ipc").ok()?;
        (ipc.ino() != HOST_IPC).then(|| Self::new(Path::new("/dev/shm"), own))
    }

    /// Remembers what is left there of the pod's containers, all of which start again: what init containers
    /// and sidecars put there from now on is new, and theirs. Called by the first of them, whose user may be another.
    pub fn note_restart(&self) -> io::Result<()> {
        if self.before.is_none() {
            return Ok(());
        }
        let left: BTreeSet<Entry> = self.files(|_| true).take(MOST + 1).collect();
        let list = if left.len() > MOST {
            vec![0; LONGEST as usize]
        } else {
            print(&left)
        };
        files::replace(&self.own, AT_RESTART, &list)
    }

    /// Remembers what is there, for the supervisor of the next container, too: this one may be
    /// killed together with its child.
    pub fn remember(&mut self) -> io::Result<()> {
        let before = self.own_files().collect();
        let list = print(&before);
        self.before = Some(before);
        self.at_restart = None;
        files::replace(&self.own, FILE, &list)?;
        match fs::remove_file(self.own.join(AT_RESTART)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Unlinks files of this user that have appeared since [`SharedMemory::remember`], and returns
    /// how many.
    pub fn clean(&self) -> usize {
        let Some(before) = &self.before else {
            return 0;
        };
        let left = |file: &Entry| self.at_restart.as_ref().is_none_or(|l| l.contains(file));
        let new = self.own_files();
        let new = new.filter(|file| !before.contains(file) && left(file));
        new.filter(|(_, name)| fs::remove_file(self.folder.join(name)).is_ok())
            .count()
    }

    /// Names and inodes of the regular files of this user.
    fn own_files(&self) -> impl Iterator<Item = Entry> {
        let user = geteuid().as_raw();
        self.files(move |owner| owner == user)
    }

    /// The same of the users for which that holds.
    fn files(&self, of: impl Fn(u32) -> bool) -> impl Iterator<Item = Entry> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let metadata = entry.metadata().ok()?;
            let counts = metadata.is_file() && of(metadata.uid());
            counts.then(|| (metadata.ino(), entry.file_name()))
        })
    }
}

/// A list that was noted; none if there is none, or some of it may be missing.
fn read(path: &Path) -> Option<BTreeSet<Entry>> {
    let list = files::read(path, LONGEST)?;
    ((list.len() as u64) < LONGEST).then(|| parse(&list))
}

/// Inode, a space, name; a name can have any byte but the one that ends it here.
fn print(entries: &BTreeSet<Entry>) -> Vec<u8> {
    let each = entries.iter().flat_map(|(inode, name)| {
        let inode = format!("{inode} ");
        [inode.as_bytes(), name.as_bytes(), b"\0"].concat()
    });
    each.collect()
}

/// What makes no sense is left out.
fn parse(list: &[u8]) -> BTreeSet<Entry> {
    let entries = list.split(|byte| *byte == 0);
    entries.filter_map(parse_entry).collect()
}

/// One entry of such a list.
fn parse_entry(entry: &[u8]) -> Option<Entry> {
    let space = entry.iter().position(|byte| *byte == b' ')?;
    let (inode, name) = entry.split_at(space);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    Some((inode, OsStr::from_bytes(name.get(1..)?).to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{FILE, MOST, SharedMemory, parse, print};

    #[test]
    fn what_is_printed_is_parsed_and_the_rest_left_out() {
        let entries = [(1, "a b".into()), (2, "\n".into()), (2, "sem.x".into())].into();
        assert_eq!(parse(&print(&entries)), entries);
        let some = parse(b"7 of-another\0x nccl\0\08\09 cut");
        assert_eq!(some, [(7, "of-another".into()), (9, "cut".into())].into());
    }

    #[test]
    fn before_the_first_start_in_a_pod_nothing_is_unlinked() {
        let [folder, own] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(folder.path().join("of-another"), "").unwrap();
        let new = || SharedMemory::new(folder.path(), own.path());
        assert_eq!(new().clean(), 0);
        new().remember().unwrap();
        fs::write(folder.path().join("nccl-1"), "").unwrap();
        assert_eq!(new().clean(), 1, "by the next container");
        assert!(own.path().join(FILE).exists());
    }

    #[test]
    fn what_init_containers_put_there_when_all_containers_restart_stays() {
        let [folder, own] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        let new = || SharedMemory::new(folder.path(), own.path());
        let names = || -> BTreeSet<String> {
            let entries = fs::read_dir(folder.path()).unwrap();
            let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string();
            entries.map(|e| name(e).unwrap()).collect()
        };
        new().note_restart().unwrap();
        fs::write(path("data"), "").unwrap();
        assert_eq!(new().clean(), 0);
        new().remember().unwrap();
        for attempt in 0..3 {
            fs::write(path("nccl"), "").unwrap();
            // The container is killed whole, and the kubelet restarts all of them.
            new().note_restart().unwrap();
            fs::write(path("next"), "").unwrap();
            fs::rename(path("next"), path("data")).unwrap();
            let mut memory = new();
            assert_eq!(memory.clean(), 1, "{attempt}");
            assert_eq!(names(), ["data".to_owned()].into());
            memory.remember().unwrap();
            fs::write(path("nccl"), "").unwrap();
            assert_eq!(memory.clean(), 1, "by the one that started the child");
            fs::write(path("nccl"), "").unwrap();
            assert_eq!(new().clean(), 1, "by the next, without the others");
        }
        fs::write(path("nccl"), "").unwrap();
        for file in 0..MOST {
            fs::write(path(&file.to_string()), "").unwrap();
        }
        new().note_restart().unwrap();
        assert_eq!(new().clean(), 0, "of more than can be noted");
    }

    #[test]
    fn only_files_that_appeared_since_are_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("before"), "").unwrap();
        let own = tempfile::tempdir().unwrap();
        let mut memory = SharedMemory::new(folder.path(), own.path());
        memory.remember().unwrap();
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
