//! Files that a child leaves in `/dev/shm`. A killed process cannot unlink its segments, and each
//! attempt adds more.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::process::geteuid;

use crate::files;

/// Inode of the host's IPC namespace (`PROC_IPC_INIT_INO` of the kernel).
const HOST_IPC: u64 = 0xEFFF_FFFF;

/// File name in the supervisor's folder. The folder and `/dev/shm` belong to the pod, so both
/// outlive the container.
const FILE: &str = "shared-memory";
/// File that exists from a restart of all containers until a child starts. It lists the files in
/// shared memory before the other init containers ran again.
const AT_RESTART: &str = "shared-memory-at-restart";
/// A list of this many bytes or more is ignored, because it may be incomplete.
const LONGEST: u64 = 1 << 20;
/// Most files in the list at a restart: the init container has a memory limit of 16 MiB.
const MOST: usize = 10_000;

/// Name prefixes of files that a later process never reads. Checkpoints in memory have other names.
const LIBRARY_PREFIXES: [&[u8]; 12] = [
    b"nccl-",            // NCCL and RCCL
    b"torch_",           // PyTorch: tensors shared between processes
    b"psm_",             // Python: multiprocessing.shared_memory without a name
    b"sem.",             // POSIX semaphores: Python's multiprocessing, loky
    b"cuda.shm.",        // CUDA
    b"ucx_shm_posix_",   // UCX
    b"vader_segment.",   // Open MPI 4
    b"sm_segment.",      // Open MPI 5
    b"mpich_shar_tmp",   // MPICH
    b"Intel_MPI_",       // Intel MPI
    b"psm2_shm.",        // Omni-Path
    b"__KMP_REGISTERED", // OpenMP of LLVM and Intel
];

/// Files that are unlinked before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanedFiles {
    /// Files of communication libraries, by name.
    Known,
    All,
    None,
}

impl CleanedFiles {
    fn contain(self, name: &OsStr) -> bool {
        match self {
            Self::Known => LIBRARY_PREFIXES
                .iter()
                .any(|prefix| name.as_bytes().starts_with(prefix)),
            Self::All => true,
            Self::None => false,
        }
    }
}

/// Inode and name of a file.
type Entry = (u64, OsString);

/// The folder, and its content when the child started.
#[derive(Debug)]
pub struct SharedMemory {
    folder: PathBuf,
    own: PathBuf,
    /// Content when the last child started; `None` if none has started in this pod.
    before: Option<BTreeSet<Entry>>,
    /// Content at the last restart of all containers. The child has left no file outside this list.
    at_restart: Option<BTreeSet<Entry>>,
}

impl SharedMemory {
    /// `own`: the supervisor's folder, which has the lists of an earlier supervisor.
    pub fn new(folder: &Path, own: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            own: own.to_owned(),
            before: read(&own.join(FILE)),
            // If the list is unreadable, `clean` removes nothing.
            at_restart: fs::symlink_metadata(own.join(AT_RESTART))
                .is_ok()
                .then(|| read(&own.join(AT_RESTART)).unwrap_or_default()),
        }
    }

    /// `/dev/shm` of the container. `None` with `hostIPC`: the folder then has files of other pods
    /// too.
    pub fn of_container(own: &Path) -> Option<Self> {
        let ipc = fs::metadata("/proc/self/ns/ipc").ok()?;
        (ipc.ino() != HOST_IPC).then(|| Self::new(Path::new("/dev/shm"), own))
    }

    /// Lists the files that remain at a restart of all containers. Later files belong to init
    /// containers and sidecars. The first init container calls this, possibly as another user.
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

    /// Lists the current files. The list is persisted, because the kernel may kill the supervisor
    /// together with the child.
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

    /// Unlinks files of this user that appeared after [`SharedMemory::remember`]. Returns their
    /// number.
    pub fn clean(&self, cleaned: CleanedFiles) -> usize {
        let Some(before) = &self.before else {
            return 0;
        };
        let left = |file: &Entry| self.at_restart.as_ref().is_none_or(|l| l.contains(file));
        let new = self
            .own_files()
            .filter(|file| !before.contains(file) && left(file))
            .filter(|(_, name)| cleaned.contain(name));
        new.filter(|(_, name)| fs::remove_file(self.folder.join(name)).is_ok())
            .count()
    }

    fn own_files(&self) -> impl Iterator<Item = Entry> {
        let user = geteuid().as_raw();
        self.files(move |owner| owner == user)
    }

    fn files(&self, of: impl Fn(u32) -> bool) -> impl Iterator<Item = Entry> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let metadata = entry.metadata().ok()?;
            let counts = metadata.is_file() && of(metadata.uid());
            counts.then(|| (metadata.ino(), entry.file_name()))
        })
    }
}

/// `None` if the list is missing or may be incomplete.
fn read(path: &Path) -> Option<BTreeSet<Entry>> {
    let list = files::read(path, LONGEST)?;
    ((list.len() as u64) < LONGEST).then(|| parse(&list))
}

/// Format: inode, a space, the name, a zero byte. File names cannot contain zero bytes.
fn print(entries: &BTreeSet<Entry>) -> Vec<u8> {
    let each = entries.iter().flat_map(|(inode, name)| {
        let inode = format!("{inode} ");
        [inode.as_bytes(), name.as_bytes(), b"\0"].concat()
    });
    each.collect()
}

/// Skips invalid entries.
fn parse(list: &[u8]) -> BTreeSet<Entry> {
    let entries = list.split(|byte| *byte == 0);
    entries.filter_map(parse_entry).collect()
}

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

    use super::{CleanedFiles, FILE, MOST, SharedMemory, parse, print};

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
        assert_eq!(new().clean(CleanedFiles::All), 0);
        new().remember().unwrap();
        fs::write(folder.path().join("nccl-1"), "").unwrap();
        assert_eq!(new().clean(CleanedFiles::All), 1, "by the next container");
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
        assert_eq!(new().clean(CleanedFiles::All), 0);
        new().remember().unwrap();
        for attempt in 0..3 {
            fs::write(path("nccl"), "").unwrap();
            // The kernel kills the whole container, and the kubelet restarts all containers.
            new().note_restart().unwrap();
            fs::write(path("next"), "").unwrap();
            fs::rename(path("next"), path("data")).unwrap();
            let mut memory = new();
            assert_eq!(memory.clean(CleanedFiles::All), 1, "{attempt}");
            assert_eq!(names(), ["data".to_owned()].into());
            memory.remember().unwrap();
            fs::write(path("nccl"), "").unwrap();
            assert_eq!(
                memory.clean(CleanedFiles::All),
                1,
                "by the one that started the child"
            );
            fs::write(path("nccl"), "").unwrap();
            assert_eq!(
                new().clean(CleanedFiles::All),
                1,
                "by the next, without the others"
            );
        }
        fs::write(path("nccl"), "").unwrap();
        for file in 0..MOST {
            fs::write(path(&file.to_string()), "").unwrap();
        }
        new().note_restart().unwrap();
        assert_eq!(
            new().clean(CleanedFiles::All),
            0,
            "of more than can be noted"
        );
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

        assert_eq!(memory.clean(CleanedFiles::All), 2);
        let left: BTreeSet<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["before", "folder", "link"].map(Into::into).into());
    }

    #[test]
    fn files_of_unknown_name_stay_unless_all_are_cleaned() {
        let [folder, own] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut memory = SharedMemory::new(folder.path(), own.path());
        memory.remember().unwrap();
        for name in [
            "nccl-x",
            "torch_7_1",
            "sem.mp-a",
            "psm_2",
            "flash-checkpoint",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(memory.clean(CleanedFiles::None), 0);
        assert_eq!(memory.clean(CleanedFiles::Known), 4);
        assert!(folder.path().join("flash-checkpoint").exists());
        assert_eq!(memory.clean(CleanedFiles::All), 1);
    }
}
