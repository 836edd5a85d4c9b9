//! Configuration of a containerd that shares nothing with other containerds of the machine.

use std::path::{Path, PathBuf};

/// Snapshotters and plugins that need devices or rights that test machines lack.
const DISABLED: &str = r#"disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
"#;

/// Folders of a containerd and of the programs that it starts.
#[derive(Debug)]
pub struct Places<'a> {
    /// Files that survive a reboot.
    pub root: PathBuf,
    /// Files that do not survive a reboot.
    pub state: PathBuf,
    /// Socket of the CRI.
    pub socket: &'a Path,
    /// State folder of runc. Its default is one folder for the machine, in which names of
    /// containers of different containerds conflict.
    pub runc: PathBuf,
    /// Network plugins and their configuration. Not used by pods on the network of the machine.
    pub network: (PathBuf, PathBuf),
}

/// The configuration file of containerd 1.x or 2.x.
pub fn toml(places: &Places<'_>, major: u32, sandbox_image: &str) -> String {
    let version = if major >= 2 { 3 } else { 2 };
    let plugins = if major >= 2 {
        second(places, sandbox_image)
    } else {
        first(places, sandbox_image)
    };
    format!(
        r#"version = {version}
root = "{}"
state = "{}"
{DISABLED}[grpc]
address = "{}"
[ttrpc]
address = "{}"
{plugins}"#,
        places.root.display(),
        places.state.display(),
        places.socket.display(),
        places.socket.with_extension("ttrpc").display()
    )
}

fn first(places: &Places<'_>, sandbox_image: &str) -> String {
    let (programs, network) = &places.network;
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox_image}"
# Without CAP_SYS_RESOURCE a sandbox cannot lower its score.
restrict_oom_score_adj = true
disable_tcp_service = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
enable_unprivileged_ports = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "{}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{}"
"#,
        programs.display(),
        network.display(),
        places.runc.display()
    )
}

fn second(places: &Places<'_>, sandbox_image: &str) -> String {
    let (programs, network) = &places.network;
    format!(
        r#"[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_unprivileged_ports = false
enable_unprivileged_icmp = false
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{}"]
conf_dir = "{}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{}"
[plugins."io.containerd.grpc.v1.cri"]
disable_tcp_service = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
"#,
        programs.display(),
        network.display(),
        places.runc.display()
    )
}
