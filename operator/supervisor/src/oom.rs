//! Number of processes of the container that the kernel has OOM-killed.

use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's counter for the memory cgroup of this process.
#[derive(Debug, Default)]
pub struct OomCounter {
    files: Vec<PathBuf>,
}

impl OomCounter {
    /// Locates the counter through `/proc`. Without a counter, reads return 0.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            files: files(&mounts, &cgroups),
        }
    }

    /// Processes killed so far, including earlier starts of the container.
    pub fn read(&self) -> u64 {
        self.files
            .iter()
            .find_map(|file| count(&fs::read_to_string(file).ok()?))
            .unwrap_or(0)
    }
}

/// Parses line `oom_kill N` of cgroup v2's `memory.events` or cgroup v1's `memory.oom_control`.
fn count(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Candidate files of the counter, most likely first. A machine can mount both cgroup versions,
/// with the memory controller in one of them.
fn files(mounts: &str, cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let (file, path) = match mount.kind {
            "cgroup" if mount.options.split(',').any(|option| option == "memory") => (
                "memory.oom_control",
                path_of(cgroups, |controllers| {
                    controllers.split(',').any(|c| c == "memory")
                }),
            ),
            "cgroup2" => ("memory.events", path_of(cgroups, str::is_empty)),
            _ => continue,
        };
        let Some(path) = path else {
            continue;
        };
        // In a container the mount starts at the container's own cgroup, while the path may be
        // relative to the host's root.
        let below = Path::new(path)
            .strip_prefix(mount.root)
            .unwrap_or(Path::new(""));
        files.push(Path::new(mount.point).join(below).join(file));
    }
    files
}

/// Path of this process in the hierarchy with these controllers. Format of a line:
/// `number:controllers:path`.
fn path_of(cgroups: &str, controllers: impl Fn(&str) -> bool) -> Option<&str> {
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        if let (Some(names), Some(path)) = (fields.next(), fields.next())
            && controllers(names)
        {
            return Some(path);
        }
    }
    None
}

struct Mount<'a> {
    /// Path of the mounted directory within the file system.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut what = what.split(' ');
        let (kind, _source, options) = (what.next()?, what.next()?, what.next()?);
        Some(Self {
            root,
            point,
            kind,
            options,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{count, files};

    #[test]
    fn version_2_counts_in_memory_events() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";
        assert_eq!(
            files(mounts, "0::/\n"),
            [Path::new("/sys/fs/cgroup/memory.events")]
        );
        assert_eq!(
            files(mounts, "0::/a/b\n"),
            [Path::new("/sys/fs/cgroup/a/b/memory.events")]
        );
        let events = "low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\noom_group_kill 1\n";
        assert_eq!(count(events), Some(3));
    }

    #[test]
    fn version_1_counts_in_memory_oom_control() {
        let mounts = "\
            33 32 0:28 /kubepods/pod1/c1 /sys/fs/cgroup/cpu ro master:10 - cgroup cgroup rw,cpu\n\
            35 32 0:31 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro master:11 - cgroup cgroup rw,memory\n";
        let cgroups = "9:cpu:/kubepods/pod1/c1\n5:memory:/kubepods/pod1/c1\n0::/\n";
        assert_eq!(
            files(mounts, cgroups),
            [Path::new("/sys/fs/cgroup/memory/memory.oom_control")]
        );
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            Some(1)
        );
    }

    #[test]
    fn where_the_kernel_does_not_count_nothing_is_counted() {
        assert_eq!(files("", ""), Vec::<&Path>::new());
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
        assert_eq!(count("oom_kill many\n"), None);
    }
}
