//! `kubectl lockstep dashboard` over a real API server, with the rights of its role only.

use anyhow::{Context, Result, ensure};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::{Launch, Process, workspace_binary};
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

/// User with role `lockstep-dashboard`.
const READER: &str = "reader-of-dashboard";

/// The stream of a page. It ends with this value.
struct Stream(Lines<BufReader<TcpStream>>);

impl Stream {
    async fn open(address: &str, query: &str) -> Result<Self> {
        let (host, token) = address.split_once("/#t=").context("a token")?;
        let mut stream = TcpStream::connect(host).await?;
        let request = format!(
            "GET /api/stream?{query} HTTP/1.0\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(Self(BufReader::new(stream).lines()))
    }

    /// The next document or patch with this name.
    async fn next(&mut self, name: &str) -> Result<Value> {
        let next = async {
            while let Some(line) = self.0.next_line().await? {
                let Some(data) = line.strip_prefix("data: ") else {
                    continue;
                };
                let mut data: Value = serde_json::from_str(data)?;
                if data["name"] == name {
                    let part = if data["value"].is_null() {
                        "patch"
                    } else {
                        "value"
                    };
                    return Ok(data[part].take());
                }
            }
            anyhow::bail!("the stream ended")
        };
        let next = tokio::time::timeout(PATIENCE, next).await;
        next.with_context(|| format!("no {name} within {PATIENCE:?}"))?
    }

    /// Waits until a document or patch with this name contains the text.
    async fn contains(&mut self, name: &str, text: &str) -> Result<()> {
        while !self.next(name).await?.to_string().contains(text) {}
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_follows_a_cluster_with_the_rights_of_its_role() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("the names of the shipped overlay") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "dashboard", &shape, async |t| {
        let to = format!("--user={READER}");
        let role = "--clusterrole=lockstep-dashboard";
        let bind = ["create", "clusterrolebinding", READER, role, &to];
        t.cluster.kubectl(&bind).await?;
        let kubeconfig = t.cluster.kubeconfig_for(&format!("user:{READER}")).await?;
        let kubeconfig = kubeconfig.display().to_string();
        let launch = Launch {
            name: "dashboard".to_owned(),
            program: workspace_binary("kubectl-lockstep")?,
            args: ["dashboard", "--kubeconfig", &kubeconfig]
                .map(str::to_owned)
                .into(),
            env: None,
        };
        let mut dashboard = Process::start(&launch, t.cluster.folder())?;
        let line = dashboard.ready_line("Serving http://", PATIENCE).await?;
        let address = line.split_whitespace().next().context("an address")?;

        let mut map = Stream::open(address, "view=map").await?;
        let frame = map.next("frame").await?;
        ensure!(frame["missing"] == json!([]), "{:#}", frame["missing"]);
        ensure!(frame["freshness"]["state"] == "live", "{frame:#}");
        map.next("map").await?;
        t.create(gang("first", 2, 8, json!({}))).await?;
        let pods = t.running("first").await?;
        let node = lockstep_cluster::scenario::node(pods.first().context("a pod")?);
        map.contains("map", &node).await?;

        let path = format!("view=workload&workload={}/first", t.name);
        let mut workload = Stream::open(address, &path).await?;
        let document = workload.next("workload").await?;
        ensure!(document["status"]["phase"] == "Running", "{document:#}");
        t.exit(pods.first().context("a pod")?, 3).await?;
        workload.contains("workload", "ContainerExit").await?;

        t.create(gang("second", 2, 8, json!({}))).await?;
        eventually("the place of the waiting gang", PATIENCE, async || {
            let mut queue = Stream::open(address, "view=queue").await?;
            let rows = queue.next("queue").await?["rows"].take();
            let mut rows = rows.as_object().into_iter().flat_map(|rows| rows.values());
            let row = rows.find(|row| row["workload"] == "second" && row["namespace"] == *t.name);
            let row = row.context("no row")?;
            ensure!(row["position"].is_u64() && row["ahead"].is_u64(), "{row:#}");
            Ok(())
        })
        .await?;
        dashboard.kill()?;
        t.cluster
            .kubectl(&["delete", "clusterrolebinding", READER])
            .await?;
        Ok(())
    })
    .await
}
