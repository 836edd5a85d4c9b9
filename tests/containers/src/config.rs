//! Configuration of a containerd that shares nothing with another on the machine.

use std::path::{Path, PathBuf};

/// Snapshotters and plugins that need devices or rights that a test machine lacks.
const DISABLED: &str = r#"disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
"#;

/// The configuration file of containerd 1.x or 2.x.
pub(crate) fn toml(folder: &Path, socket: &Path, major: u32, sandbox_image: &str) -> String {
    let (root, state) = (folder.join("root"), folder.join("state"));
    let version = if major >= 2 { 3 } else { 2 };
    let plugins = if major >= 2 {
        second(folder, sandbox_image)
    } else {
        first(folder, sandbox_image)
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
        root.display(),
        state.display(),
        socket.display(),
        socket.with_extension("ttrpc").display()
    )
}

/// Where runc keeps what it knows of the containers: by default one folder of the machine, in which a
/// name that another containerd uses is taken.
pub(crate) fn runc_root(folder: &Path) -> PathBuf {
    folder.join("runc")
}

/// Pods have the network of the machine, so the folder of network plugins stays empty.
fn first(folder: &Path, sandbox_image: &str) -> String {
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
conf_dir = "{}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{}"
"#,
        folder.join("cni").display(),
        runc_root(folder).display()
    )
}

fn second(folder: &Path, sandbox_image: &str) -> String {
    format!(
        r#"[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_unprivileged_ports = false
[plugins."io.containerd.cri.v1.runtime".cni]
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
        folder.join("cni").display(),
        runc_root(folder).display()
    )
}
