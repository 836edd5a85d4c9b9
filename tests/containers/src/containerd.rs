//! A separate containerd with root, state and sockets in the folder of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::process::{Launch, Process, run};
use lockstep_cluster::reaper;
use lockstep_cluster::{eventually, programs};
use xtask::image::{Entry, Image, Labels, Layer, Target};

use crate::config;
use crate::kubelet::Kubelet;

/// Folder with another containerd than that of `tests/kubernetes/build.sh nodes`.
const PROGRAMS: &str = "LOCKSTEP_CONTAINERD";
/// The image of every container, with a shell and [`TOOLS`].
pub const IMAGE: &str = "lockstep.test/shell:1";
/// The image of sandboxes.
pub const PAUSE: &str = "lockstep.test/pause:1";
/// Programs of this machine in the images.
const TOOLS: [&str; 6] = ["cat", "mkdir", "sh", "sleep", "touch", "true"];
/// Folders that contain them.
const FOLDERS: [&str; 2] = ["/bin", "/usr/bin"];
/// Capabilities of containers. `ctr` has no option for all of them.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
const START: Duration = Duration::from_mins(1);
const CALL: Duration = Duration::from_mins(1);

/// Namespace of the CRI in containerd.
const NAMESPACE: &str = "k8s.io";

/// Ends and removes what a killed containerd leaves. Needs only `folder` and `socket`.
const CLEAN: &str = include_str!("clean.sh");

/// A container to start.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Name of its image.
    pub image: &'a str,
    /// Name of the container.
    pub name: &'a str,
    /// Entrypoint of the image, which `ctr` omits if there are arguments.
    pub entrypoint: &'a [String],
    /// Arguments after the entrypoint.
    pub args: &'a [String],
    /// Environment in addition to the image's.
    pub env: &'a BTreeMap<String, String>,
    /// A folder of the machine, mounted read-only under the same path.
    pub folder: &'a Path,
}

/// A containerd. On drop, it ends with all its containers.
#[derive(Debug)]
pub struct Containerd {
    folder: PathBuf,
    socket: PathBuf,
    programs: PathBuf,
    /// Major version.
    pub major: u32,
    process: Option<Process>,
}

impl Containerd {
    /// Starts a containerd with [`IMAGE`] that listens on `socket`, with its files in `folder`.
    pub async fn start(folder: &Path, socket: &Path) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "containers need root");
        fs::create_dir_all(folder)?;
        fs::create_dir_all(socket.parent().context("a folder")?)?;
        let programs = match std::env::var_os(PROGRAMS) {
            Some(folder) => folder.into(),
            None => programs("nodes").await?,
        };
        let mut containerd = Self {
            folder: folder.into(),
            socket: socket.into(),
            programs,
            major: 1,
            process: None,
        };
        containerd.major = containerd.installed_major().await?;
        let places = config::Places {
            root: folder.join("root"),
            state: folder.join("state"),
            socket,
            runc: containerd.runc_root(),
            network: (folder.join("cni"), folder.join("cni")),
        };
        let text = config::toml(&places, containerd.major, PAUSE);
        fs::write(containerd.config(), text)?;
        let known = format!("folder={}\nsocket={}\n", folder.display(), socket.display());
        fs::write(containerd.clean(), known + CLEAN)?;
        reaper::last(&containerd.clean())?;
        containerd.restart().await?;
        for image in basic().await? {
            containerd.import(&image).await?;
        }
        Ok(containerd)
    }

    fn runc_root(&self) -> PathBuf {
        self.folder.join("runc")
    }

    fn config(&self) -> PathBuf {
        self.folder.join("config.toml")
    }

    /// The script that removes what remains of it.
    fn clean(&self) -> PathBuf {
        self.folder.join("clean.sh")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    async fn installed_major(&self) -> Result<u32> {
        let text = run(&self.program("containerd"), &["--version"], &[], CALL).await?;
        // For example `containerd github.com/containerd/containerd/v2 v2.4.2 abcdef`.
        let mut numbers = text
            .split_whitespace()
            .filter_map(|w| w.trim_start_matches('v').split_once('.'));
        numbers
            .find_map(|(major, _)| major.parse().ok())
            .with_context(|| format!("no version in {text:?}"))
    }

    /// Starts the containerd (also after [`Containerd::kill`]) and waits until it answers.
    pub async fn restart(&mut self) -> Result<()> {
        // containerd looks for its shim in the PATH, which can contain the shim of another version.
        let path = std::env::var("PATH").unwrap_or_default();
        let launch = Launch {
            name: "containerd".into(),
            program: "env".into(),
            args: vec![
                format!("PATH={}:{path}", self.programs.display()),
                self.program("containerd").display().to_string(),
                "--config".into(),
                self.config().display().to_string(),
            ],
            env: None,
        };
        self.process = Some(Process::start(&launch, &self.folder)?);
        let kubelet = self.kubelet()?;
        let log = self.log();
        eventually("containerd to answer", START, async || {
            kubelet.version().await
        })
        .await
        .with_context(|| format!("see {}", log.display()))?;
        Ok(())
    }

    /// Kills the containerd with SIGKILL. Its containers continue to run.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("it runs")?.kill()
    }

    /// Number of SIGKILLs to each container that the containerd stopped, by container ID, from its
    /// whole log, before and after [`Containerd::kill`].
    pub fn kills(&self) -> Result<BTreeMap<String, usize>> {
        Ok(kills(&fs::read_to_string(self.log())?))
    }

    fn log(&self) -> PathBuf {
        self.folder.join("containerd.log")
    }

    /// A kubelet for this runtime.
    pub fn kubelet(&self) -> Result<Kubelet> {
        Kubelet::new(&self.socket, &self.folder.join("logs"))
    }

    /// Imports an image.
    pub async fn import(&self, image: &Image) -> Result<()> {
        let archive = self.folder.join("image.tar");
        fs::write(&archive, image.archive()?)?;
        self.import_archive(&archive).await
    }

    /// Imports the archive of an image.
    pub async fn import_archive(&self, archive: &Path) -> Result<()> {
        let archive = archive.display().to_string();
        self.ctr(&["images", "import", &archive]).await.map(drop)
    }

    async fn ctr(&self, args: &[&str]) -> Result<String> {
        let socket = self.socket.display().to_string();
        let args = [&["-a", &*socket, "-n", NAMESPACE], args].concat();
        run(&self.program("ctr"), &args, &[], CALL).await
    }

    /// Starts a container on the machine's network, with a read-only root file system, without
    /// capabilities, as the user and with the entrypoint of its image. The returned process has the
    /// output of the container and forwards signals to it.
    pub fn run_on_host_network(&self, what: &Run<'_>) -> Result<Process> {
        let socket = self.socket.display().to_string();
        let mut args = vec!["-a".to_owned(), socket, "-n".into(), NAMESPACE.into()];
        args.extend(self.run_args(what));
        let launch = Launch {
            name: format!("container-{}", what.name),
            program: self.program("ctr"),
            args,
            env: None,
        };
        Process::start(&launch, &self.folder)
    }

    /// Runs such a container until it ends with success, and returns its output.
    pub async fn printed(&self, what: &Run<'_>) -> Result<String> {
        let args = self.run_args(what);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.ctr(&args).await
    }

    fn run_args(&self, what: &Run<'_>) -> Vec<String> {
        let folder = what.folder.display();
        let mut args = ["run", "--rm", "--net-host", "--read-only"]
            .map(str::to_owned)
            .to_vec();
        for capability in CAPABILITIES {
            args.extend(["--cap-drop", capability].map(str::to_owned));
        }
        let fifos = self.folder.join("fifo").display().to_string();
        args.extend(["--fifo-dir".to_owned(), fifos]);
        let runc = self.runc_root().display().to_string();
        args.extend(["--runc-root".to_owned(), runc]);
        let mount = format!("type=bind,src={folder},dst={folder},options=rbind:ro");
        args.extend(["--mount".to_owned(), mount]);
        for (name, value) in what.env {
            args.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        args.extend([what.image.to_owned(), what.name.to_owned()]);
        args.extend(what.entrypoint.iter().chain(what.args).cloned());
        args
    }

    /// PID of the first process of such a container.
    pub async fn first_process(&self, name: &str) -> Result<u32> {
        let tasks = self.ctr(&["tasks", "ls"]).await?;
        let mut lines = tasks.lines().map(str::split_whitespace);
        let pid = lines.find_map(|mut words| {
            let found = words.next() == Some(name);
            found.then(|| words.next())?
        });
        pid.with_context(|| format!("no task {name}: {tasks}"))?
            .parse()
            .context("a process id")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        drop(self.process.take());
        // The reaper tries again later.
        let _ = std::process::Command::new("sh").arg(self.clean()).status();
    }
}

/// Both versions log `msg="Kill container \"ID\""` before they send the signal. For a container
/// that has ended, they log no such message.
fn kills(log: &str) -> BTreeMap<String, usize> {
    let mut kills = BTreeMap::new();
    for rest in log.split(r#"msg="Kill container \""#).skip(1) {
        let id = rest.split('\\').next().unwrap_or_default();
        *kills.entry(id.to_owned()).or_default() += 1;
    }
    kills
}

/// [`IMAGE`] and [`PAUSE`], to import.
pub async fn basic() -> Result<[Image; 2]> {
    let tools = tools().await?;
    Ok([
        image(IMAGE, &["/bin/sh"], "0:0", tools.clone())?,
        image(PAUSE, &["/bin/sleep", "2147483647"], "0:0", tools)?,
    ])
}

/// A shell and [`TOOLS`], for a layer of an image.
pub async fn tools() -> Result<Vec<Entry>> {
    let found = |tool: &str| {
        let mut paths = FOLDERS.iter().map(|folder| Path::new(folder).join(tool));
        let path = paths.find(|path| path.is_file());
        anyhow::Ok((
            format!("bin/{tool}"),
            path.with_context(|| tool.to_owned())?,
        ))
    };
    let programs = TOOLS.into_iter().map(found).collect::<Result<Vec<_>>>()?;
    linked(&programs).await
}

/// Programs with their paths in an image, and their shared libraries.
pub async fn linked(programs: &[(String, PathBuf)]) -> Result<Vec<Entry>> {
    let paths: Vec<_> = programs
        .iter()
        .map(|(_, path)| path.display().to_string())
        .collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let listed = run(Path::new("ldd"), &paths, &[], CALL).await?;
    // A line with a colon at its end contains the name of the program.
    let libraries = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'));
    let libraries: BTreeSet<&str> = libraries.collect();
    let libraries = libraries
        .into_iter()
        .map(|path| (path.trim_start_matches('/').to_owned(), PathBuf::from(path)));
    let all = programs.iter().cloned().chain(libraries);
    all.map(|(inside, path)| {
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(Entry::program(&inside, bytes))
    })
    .collect()
}

/// An image with these files.
pub fn image(
    reference: &str,
    entrypoint: &[&str],
    user: &str,
    entries: Vec<Entry>,
) -> Result<Image> {
    Ok(Image {
        reference: reference.into(),
        entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
        user: user.into(),
        tag: "1".into(),
        labels: Labels::new(),
        layers: BTreeMap::from([(Target::here(), Layer::new(entries)?.uncompressed())]),
    })
}

#[cfg(test)]
mod tests {
    use super::kills;

    #[test]
    fn a_container_that_is_killed_twice_is_counted_twice() {
        let log = r#"time="t" level=info msg="StopContainer for \"c1\" with timeout 0 (s)"
time="t" level=info msg="Kill container \"c1\""
time="t" level=info msg="StopContainer for \"c1\" returns successfully"
time="t" level=info msg="Kill container \"c2\"" runtime=x
time="t" level=info msg="Kill container \"c1\""
"#;
        let expected = [("c1".to_owned(), 2), ("c2".to_owned(), 1)].into();
        assert_eq!(kills(log), expected);
    }
}
