//! One node: a containerd and a kubelet in PID, network, mount, UTS and cgroup namespaces of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_cluster::Cluster;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::eventually;
use lockstep_cluster::manifests::merge;
use lockstep_cluster::process::{Launch, Process, run};
use lockstep_containers::config::{self, Places};
use lockstep_containers::containerd::PAUSE;
use lockstep_containers::processes;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::images::product_image;
use crate::real_cluster::{BRIDGE, DNS, ROUTER};

const CALL: Duration = Duration::from_mins(2);
/// How long the programs of a node may take to start on a busy machine.
const START: Duration = Duration::from_mins(1);
/// Name of an image that is hidden from the kubelet.
const HIDDEN: &str = "lockstep.test/hidden:1";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// A node. On drop, it ends with all its processes.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    folder: PathBuf,
    programs: PathBuf,
    address: String,
    /// Configuration of the kubelet.
    config: Value,
    process: Mutex<Process>,
}

impl Node {
    /// Boots node `n<number>`, whose kubelet has these feature gates.
    pub(crate) async fn start(
        cluster: &Cluster,
        programs: &Path,
        number: u8,
        gates: &BTreeMap<&str, bool>,
    ) -> Result<Self> {
        let name = format!("n{number}");
        let folder = cluster.folder().join(&name);
        let last = number + 10;
        let address = format!("10.77.0.{last}");
        fs::create_dir_all(folder.join("cni"))?;
        let own = folder.join("kubeconfig");
        fs::rename(cluster.kubeconfig_for(&format!("node:{name}")).await?, own)?;
        let write = |file: &str, text: String| fs::write(folder.join(file), text);
        write("resolv.conf", format!("nameserver {DNS}\n"))?;
        let config = kubelet(&folder, &address, gates);
        write("kubelet.json", config.to_string())?;
        write("cni/pods.conflist", network(last).to_string())?;
        let places = Places {
            root: "/var/lib/containerd".into(),
            state: "/run/containerd".into(),
            socket: Path::new(SOCKET),
            runc: "/run/runc".into(),
            network: (programs.into(), folder.join("cni")),
        };
        write("containerd.toml", config::toml(&places, 2, PAUSE))?;
        let process = boot(&folder, programs, &name, &address).await?;
        let node = Self {
            name,
            folder,
            programs: programs.into(),
            address,
            config,
            process: Mutex::new(process),
        };
        node.until_up().await?;
        Ok(node)
    }

    async fn until_up(&self) -> Result<()> {
        eventually("containerd to answer", START, async || {
            self.ctr(&["version"]).await
        })
        .await
        .with_context(|| format!("see {}", self.folder.join("containerd.log").display()))?;
        Ok(())
    }

    /// PID of the node's first process.
    fn first(&self) -> Result<u32> {
        first(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `ctr` in the namespace of the kubelet.
    pub async fn ctr(&self, args: &[&str]) -> Result<String> {
        let socket = self.folder.join(SOCKET.trim_start_matches('/'));
        let socket = socket.display().to_string();
        let args = [&["-a", &*socket, "-n", "k8s.io"], args].concat();
        run(&self.programs.join("ctr"), &args, &[], CALL).await
    }

    /// Imports the image of an archive into the runtime.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        let archive = archive.display().to_string();
        self.ctr(&["images", "import", &archive]).await.map(drop)
    }

    /// Hides the image of a product's program from the runtime until [`Node::show_image`].
    pub async fn hide_image(&self, program: &str) -> Result<()> {
        self.rename_image(&product_image(program), HIDDEN).await
    }

    /// Restores the hidden image.
    pub async fn show_image(&self, program: &str) -> Result<()> {
        self.rename_image(HIDDEN, &product_image(program)).await
    }

    async fn rename_image(&self, from: &str, to: &str) -> Result<()> {
        self.ctr(&["images", "tag", from, to]).await?;
        self.ctr(&["images", "rm", from]).await.map(drop)
    }

    /// Cuts the node off the network. Its pods still reach each other.
    pub async fn cut(&self) -> Result<()> {
        ip(&["link", "set", &self.name, "down"]).await
    }

    /// Reconnects the node.
    pub async fn reconnect(&self) -> Result<()> {
        ip(&["link", "set", &self.name, "up"]).await
    }

    /// Reboots the node: all its processes end at once, `/run` is emptied, `/var/lib` is kept. The
    /// boot ID is new.
    pub async fn reboot(&self) -> Result<()> {
        let first = PathBuf::from(format!("/proc/{}", self.first()?));
        self.lock().kill()?;
        eventually("the node to be down", START, async || {
            ensure!(!first.exists(), "its first process is left");
            Ok(())
        })
        .await?;
        fs::remove_dir_all(self.folder.join("run"))?;
        let process = boot(&self.folder, &self.programs, &self.name, &self.address).await?;
        *self.lock() = process;
        self.until_up().await
    }

    /// Kills `containerd` or `kubelet`, which starts again at once unless it is held.
    pub fn kill(&self, program: &str) -> Result<()> {
        self.signal(program, Signal::KILL)
    }

    /// Sends a signal to `containerd` or `kubelet`.
    pub fn signal(&self, program: &str, signal: Signal) -> Result<()> {
        let found = processes::named(self.first()?, program);
        processes::signal(found.with_context(|| format!("no {program}"))?, signal)
    }

    /// Kills `containerd` or `kubelet` and keeps it from starting until [`Node::release`].
    pub fn hold(&self, program: &str) -> Result<()> {
        fs::write(self.folder.join(format!("no-{program}")), "")?;
        self.kill(program)
    }

    /// Lets a program start again.
    pub fn release(&self, program: &str) -> Result<()> {
        fs::remove_file(self.folder.join(format!("no-{program}")))?;
        Ok(())
    }

    /// Restarts the kubelet with these fields in its configuration. Fields of earlier calls are reset.
    pub fn configure(&self, fields: Value) -> Result<()> {
        let mut config = self.config.clone();
        merge(&mut config, fields);
        let text = config.to_string();
        fs::write(self.folder.join("kubelet.json"), text)?;
        self.kill("kubelet")
    }

    /// PID of a program in the container with this ID.
    pub fn process(&self, container: &str, program: &str) -> Result<u32> {
        let within = |pid: &u32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
            groups.is_ok_and(|groups| groups.contains(container))
        };
        let is_it = |pid: &u32| processes::is_named(*pid, program);
        let all = processes::descendants(self.first()?);
        let mut all = all.into_iter().filter(within);
        all.find(is_it)
            .with_context(|| format!("no process {program} in container {container}"))
    }

    /// True if a process of this program runs on the node.
    pub fn has(&self, program: &str) -> bool {
        let first = self.first();
        first.is_ok_and(|first| processes::named(first, program).is_some())
    }

    /// Folder of the node's logs: `kubelet.log` and `containerd.log`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Starts the first process of a node and connects the node to the bridge.
async fn boot(folder: &Path, programs: &Path, name: &str, address: &str) -> Result<Process> {
    let scripts = repository().join("tests/nodes");
    // A separate cgroup for the node: a kubelet removes cgroups of unknown pods.
    let namespaces =
        "unshare --cgroup --net --mount --pid --uts --fork --kill-child --mount-proc -- sh";
    let own = [
        scripts.join("node.sh").display().to_string(),
        folder.display().to_string(),
        programs.display().to_string(),
        name.to_owned(),
        address.to_owned(),
    ];
    let launch = Launch {
        name: format!("node-{name}"),
        program: scripts.join("cgroup.sh"),
        args: [name.to_owned()]
            .into_iter()
            .chain(namespaces.split(' ').map(str::to_owned))
            .chain(own)
            .collect(),
        env: None,
    };
    let process = Process::start(&launch, folder)?;
    eventually("the node's namespaces", START, async || {
        let pid = first(&process)?.to_string();
        // After a reboot the kernel removes the former link with a short delay.
        let link = ["link", "add", "name", name, "type", "veth"];
        let peer = ["peer", "name", "eth0", "netns", &*pid];
        ip(&[&link[..], &peer].concat()).await
    })
    .await?;
    ip(&["link", "set", name, "up", "master", BRIDGE]).await?;
    Ok(process)
}

/// The first descendant of this process that is in its own network namespace.
fn first(process: &Process) -> Result<u32> {
    let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net"));
    let own = network(std::process::id())?;
    let mut below = processes::descendants(process.pid()).into_iter();
    below
        .find(|pid| network(*pid).is_ok_and(|network| network != own))
        .context("no process of the node")
}

/// Runs `ip`.
pub(crate) async fn ip(args: &[&str]) -> Result<()> {
    run(Path::new("ip"), args, &[], CALL).await.map(drop)
}

fn kubelet(folder: &Path, address: &str, gates: &BTreeMap<&str, bool>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "featureGates": gates,
        "address": address,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        // This machine's file systems have no quotas, and the node does not own its disk.
        "localStorageCapacityIsolation": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "enforceNodeAllocatable": [],
        // This kernel does not allow lower scores.
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": folder.join("resolv.conf"),
        // The controller manager marks a node after 15 s.
        "nodeLeaseDurationSeconds": 12,
    })
}

fn network(last: u8) -> Value {
    let range = json!({
        "subnet": "10.77.0.0/16",
        "rangeStart": format!("10.77.{last}.2"),
        "rangeEnd": format!("10.77.{last}.254"),
        "gateway": ROUTER,
    });
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "ipam": {"type": "host-local", "ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]},
        }],
    })
}
