//! `make cluster-up`: a cluster with real nodes, until this process is killed. Its first argument is the number of
//! nodes, its second the folder in which it leaves `run`, a script that runs a command in the cluster's network
//! with kubectl and the administrator's kubeconfig. Its third argument says where the images of the product come
//! from: `development` or `released`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use lockstep_cluster::process::workspace_binary;
use lockstep_nodes::real_cluster::Gates;
use lockstep_nodes::{Images, RealCluster};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [count, folder, images] = args.as_slice() else {
        anyhow::bail!("usage: lockstep-cluster-up NODES FOLDER IMAGES");
    };
    let images = match &**images {
        "development" => Images::Development,
        "released" => Images::Released,
        _ => anyhow::bail!("IMAGES is development or released, not {images}"),
    };
    let count = count.parse().context("number of nodes")?;
    let real = RealCluster::start("cluster", count, images, &Gates::new()).await?;
    let (kubectl, plugin) = (
        real.cluster.kubectl_program(),
        workspace_binary("kubectl-lockstep")?,
    );
    let path = [kubectl, &plugin].map(|program| program.parent().context("a folder"));
    let [kubectl, plugin] = path;
    let run = PathBuf::from(folder).join("run");
    let text = format!(
        "#!/bin/sh\n\
         # Runs a command in the network of the cluster.\n\
         pid=$(cat \"$(dirname \"$0\")/pid\")\n\
         # The last child of unshare is in the namespaces of the cluster.\n\
         pid=$(awk '{{print $NF}}' \"/proc/$pid/task/$pid/children\")\n\
         export KUBECONFIG={} PATH={}:{}:$PATH\n\
         exec nsenter --net=\"/proc/$pid/ns/net\" \"$@\"\n",
        real.cluster.kubeconfig().display(),
        kubectl?.display(),
        plugin?.display(),
    );
    fs::write(&run, text)?;
    fs::set_permissions(&run, Permissions::from_mode(0o755))?;
    println!("cluster is up");
    // Killed by `make cluster-down`.
    std::future::pending::<()>().await;
    drop(real);
    Ok(())
}
