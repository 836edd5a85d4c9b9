//! `lockstep-agent` as in its DaemonSet, with a real containerd and a real API server. The test
//! acts as kubelet and manager. Needs root: `make test-containers`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_api::names::{SUPERVISOR_VOLUME, annotations, labels};
use lockstep_api::node_agent::{NodeAgentSpec, capabilities};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::{NodeAgent, NodeAgentStatus, RestartOrder, RestartOrderSpec};
use lockstep_cluster::process::{Launch, Process, free_port, run, workspace_binary};
use lockstep_cluster::{Cluster, Options, eventually, http};
use lockstep_containers::{Containerd, Kubelet, Pod};
use serde_json::json;

const NODE: &str = "node-1";
/// Limit of each wait.
const LIMIT: Duration = Duration::from_mins(1);
/// Ignores SIGTERM, as any process with PID 1 and without a handler does.
const STUBBORN: &str = "trap '' TERM; while true; do sleep 1; done";

/// A node: a containerd, an agent and its API server.
struct Rig {
    agent: Option<Process>,
    health: String,
    metrics: String,
    containerd: Containerd,
    kubelet: Kubelet,
    cluster: Cluster,
    manager: Client,
}

impl Rig {
    async fn new(name: &str) -> Result<Self> {
        let cluster = Cluster::start(&Options::named(name)).await?;
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}}))?;
        Api::all(cluster.client().await?)
            .create(&PostParams::default(), &node)
            .await?;
        let args = cluster.agent().await?.args;
        let socket = args
            .iter()
            .find_map(|a| a.strip_prefix("--runtime-endpoint=unix://"))
            .context("a socket")?;
        let containerd =
            Containerd::start(&cluster.folder().join("containerd"), &PathBuf::from(socket)).await?;
        let kubelet = containerd.kubelet()?;
        println!("{name}: {}", kubelet.version().await?);
        let manager = cluster
            .client_as("sa:lockstep-system:lockstep-manager")
            .await?;
        let (health, metrics) = (
            format!("127.0.0.1:{}", free_port()?),
            format!("127.0.0.1:{}", free_port()?),
        );
        Ok(Self {
            agent: None,
            health,
            metrics,
            containerd,
            kubelet,
            cluster,
            manager,
        })
    }

    /// Starts the agent as its DaemonSet does: root without capabilities, with a token bound to
    /// this node. Ports and folders differ.
    async fn start_agent(&mut self) -> Result<()> {
        let mut resolved = self.cluster.agent().await?;
        resolved.env.insert("NODE_NAME".into(), NODE.into());
        let token = format!("sa:lockstep-agent:{}:{NODE}", resolved.service_account);
        let kubeconfig = self.cluster.kubeconfig_for(&token).await?;
        resolved
            .env
            .insert("KUBECONFIG".into(), kubeconfig.display().to_string());
        resolved
            .args
            .push(format!("--health-address={}", self.health));
        resolved
            .args
            .push(format!("--metrics-address={}", self.metrics));
        let own_pod = resolved.env.get("POD_UID").context("the pod's UID")?;
        std::fs::create_dir_all(self.pods().join(own_pod))?;
        let kubelet = self.cluster.folder().join("agent/var/lib/kubelet");
        resolved
            .args
            .push(format!("--kubelet-dir={}", kubelet.display()));
        let program = workspace_binary("lockstep-agent")?.display().to_string();
        let without_capabilities = ["--bounding-set=-all", "--inh-caps=-all"];
        let args = without_capabilities.map(str::to_owned).into_iter();
        let launch = Launch {
            name: "agent".into(),
            program: "setpriv".into(),
            args: args.chain([program]).chain(resolved.args).collect(),
            env: Some(resolved.env),
        };
        self.agent = Some(Process::start(&launch, self.cluster.folder())?);
        Ok(())
    }

    /// The kubelet's folder of pods at its path in the DaemonSet.
    fn pods(&self) -> PathBuf {
        self.cluster.folder().join("agent/var/lib/kubelet/pods")
    }

    async fn ready(&mut self) -> Result<()> {
        let agent = self.agent.as_mut().context("an agent")?;
        eventually("the agent to be ready", LIMIT, async || {
            if let Some(status) = agent.ended()? {
                return Ok(Err(anyhow::anyhow!(
                    "the agent ended with {status}\n{}",
                    agent.log_tail(40)
                )));
            }
            http::get(&self.health, "/readyz").await.map(Ok)
        })
        .await??;
        Ok(())
    }

    /// A member of a workload of one, with a sidecar. Both ignore SIGTERM.
    async fn member(&self, uid: &str, workload: &str) -> Result<Member> {
        self.member_that(uid, workload, STUBBORN).await
    }

    /// A member whose training container runs a script.
    async fn member_that(&self, uid: &str, workload: &str, script: &str) -> Result<Member> {
        let pod = self.pod(uid, workload, "restart-all").await?;
        let side = self
            .kubelet
            .run_container(&pod, "side", 0, STUBBORN)
            .await?;
        let main = self.kubelet.run_container(&pod, "main", 0, script).await?;
        Ok(Member { pod, main, side })
    }

    /// The pod's volume with the supervisor, as the kubelet and the init container leave it.
    async fn volume(&self, uid: &str) -> Result<PathBuf> {
        let volumes = self
            .pods()
            .join(uid)
            .join("volumes/kubernetes.io~empty-dir");
        let volume = volumes.join(SUPERVISOR_VOLUME);
        std::fs::create_dir_all(&volume)?;
        std::fs::set_permissions(&volume, Permissions::from_mode(0o777))?;
        let program = workspace_binary("lockstep-run")?;
        let folder = volume.display().to_string();
        run(&program, &["init", &folder], &[], LIMIT).await?;
        Ok(volume)
    }

    async fn pod(&self, uid: &str, workload: &str, tier: &str) -> Result<Pod> {
        let labels = [
            (labels::WORKLOAD_UID, workload),
            (labels::GROUP, "workers"),
            (labels::REPLICA, "0"),
            (labels::INDEX, "0"),
            (labels::DOMAIN, "workload"),
        ];
        let annotations = [
            (annotations::ATTEMPT, "1"),
            (annotations::TIER, tier),
            ("kubectl.kubernetes.io/default-container", "main"),
        ];
        self.kubelet.run_pod(uid, &labels, &annotations).await
    }

    /// Waits until the agent has recorded this container as the training container.
    async fn released(&self, container: &str) -> Result<()> {
        let records = self
            .cluster
            .folder()
            .join("agent/run/lockstep/records.json");
        eventually("the container to be recorded", LIMIT, async || {
            let text = std::fs::read_to_string(&records)?;
            text.contains(container)
                .then_some(())
                .context("not recorded")
        })
        .await
    }

    /// Orders an attempt for the only member of a workload, as the manager does.
    #[expect(
        clippy::disallowed_methods,
        reason = "the manager that this test plays reads the clock of the machine"
    )]
    async fn order(&self, workload: &str, attempt: i64) -> Result<()> {
        let domain = DomainOrder {
            key: "workload".into(),
            attempt,
            members: vec!["workers/0/0".into()],
            world: 1,
            released_attempt: attempt,
            since: Some(std::time::SystemTime::now().into()),
            ..DomainOrder::default()
        };
        let spec = RestartOrderSpec {
            workload_uid: workload.into(),
            domains: vec![domain],
        };
        let api: Api<RestartOrder> = Api::default_namespaced(self.manager.clone());
        if api
            .list(&kube::api::ListParams::default())
            .await?
            .items
            .iter()
            .any(|o| o.spec.workload_uid == workload)
        {
            api.patch(
                workload,
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": spec})),
            )
            .await?;
        } else {
            api.create(&PostParams::default(), &RestartOrder::new(workload, spec))
                .await?;
        }
        Ok(())
    }

    async fn told(
        &self,
        what: &str,
        wanted: impl Fn(&NodeAgentStatus) -> bool,
    ) -> Result<NodeAgentStatus> {
        let api: Api<NodeAgent> = Api::all(self.cluster.client().await?);
        eventually(what, LIMIT, async || {
            let status = api.get(NODE).await?.status.unwrap_or_default();
            wanted(&status)
                .then_some(status.clone())
                .with_context(|| format!("the agent says {status:?}"))
        })
        .await
    }

    async fn arrived(&self, container: &str) -> Result<NodeAgentStatus> {
        self.told("the arrival", |s| {
            s.arrivals
                .iter()
                .flat_map(|a| &a.pods)
                .any(|p| p.container_id == container)
        })
        .await
    }

    /// Waits until the agent is linked to this many supervisors.
    async fn linked(&self, supervisors: u64) -> Result<()> {
        eventually("the links to be so many", LIMIT, async || {
            let links = self.counted("lockstep_agent_supervisor_links").await?;
            ensure!(links == supervisors, "{links} links");
            Ok(())
        })
        .await
    }

    /// Value of a counter of the agent.
    async fn counted(&self, metric: &str) -> Result<u64> {
        let text = http::get(&self.metrics, "/metrics").await?;
        let values = text
            .lines()
            .filter_map(|l| l.strip_prefix(metric))
            .filter_map(|l| l.split(' ').next_back());
        Ok(values.filter_map(|v| v.parse::<u64>().ok()).sum())
    }
}

struct Member {
    pod: Pod,
    main: String,
    side: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_ends_a_members_containers_at_once_and_the_next_ones_arrive() -> Result<()> {
    let mut rig = Rig::new("order").await?;
    rig.start_agent().await?;
    rig.ready().await?;
    let (ours, other) = (rig.member("p1", "w1").await?, rig.member("p2", "w2").await?);
    rig.released(&ours.main).await?;
    rig.released(&other.main).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "what is printed is the time of the machine"
    )]
    let ordered = tokio::time::Instant::now();
    rig.order("w1", 2).await?;
    for id in [&ours.main, &ours.side] {
        let status = rig.kubelet.ended(id, LIMIT).await?;
        ensure!(
            (status.exit_code, status.reason.as_str()) == (137, "Error"),
            "{status:?}"
        );
    }
    println!("order to both ended: {:?}", ordered.elapsed());
    ensure!(
        rig.kubelet.runs(&other.main).await?,
        "another workload's container was stopped"
    );
    let main = rig
        .kubelet
        .run_container(&ours.pod, "main", 1, STUBBORN)
        .await?;
    let side = rig
        .kubelet
        .run_container(&ours.pod, "side", 1, STUBBORN)
        .await?;
    let status = rig.arrived(&main).await?;
    println!("order to arrival told: {:?}", ordered.elapsed());
    let report = status
        .reports
        .iter()
        .find(|r| r.container_id == ours.main)
        .context("a report")?;
    ensure!(
        format!("{:?}", report.kind) == "Stopped" && report.exit_code == 137,
        "{report:?}"
    );
    for id in [&main, &side] {
        ensure!(
            rig.kubelet.runs(id).await?,
            "a younger container was stopped"
        );
    }
    ensure!(
        rig.counted("lockstep_agent_stops_total").await? == 2,
        "one stop for each container"
    );
    let events = rig.counted("lockstep_agent_event_stream").await?;
    ensure!(
        events == u64::from(rig.containerd.major >= 2),
        "containerd 2 has an event stream and 1.6 has none"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_linked_to_the_supervisor_in_a_container_of_another_user() -> Result<()> {
    let mut rig = Rig::new("supervised").await?;
    rig.start_agent().await?;
    rig.ready().await?;
    rig.told("that it reaches supervisors", |s| {
        s.capabilities.iter().any(|c| c == capabilities::SUPERVISE)
    })
    .await?;
    let volume = rig.volume("p1").await?;
    let pod = rig.pod("p1", "w1", "supervised").await?;
    let main = rig
        .kubelet
        .run_supervised(&pod, "main", 0, STUBBORN, &volume)
        .await?;
    rig.linked(1).await?;
    ensure!(rig.kubelet.runs(&main).await?, "it waits at the barrier");
    ensure!(
        rig.counted("lockstep_agent_supervisor_refused_total")
            .await?
            == 0,
        "refused"
    );
    rig.kubelet.remove(&pod).await?;
    rig.linked(0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_is_reported_with_its_code_and_reason() -> Result<()> {
    let mut rig = Rig::new("exit").await?;
    rig.start_agent().await?;
    rig.ready().await?;
    for (uid, script, code, reason) in [
        ("p1", "exit 42", 42, "Error"),
        ("p2", "exit 0", 0, "Completed"),
    ] {
        let id = rig.member_that(uid, uid, script).await?.main;
        let status = rig
            .told("the exit", |s| {
                s.reports.iter().any(|r| r.container_id == id)
            })
            .await?;
        let report = status
            .reports
            .iter()
            .find(|r| r.container_id == id)
            .context("a report")?;
        ensure!(
            (report.exit_code, report.reason.as_str()) == (code, reason),
            "{report:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_killed_in_the_middle_of_a_restart_kills_nothing_twice() -> Result<()> {
    let mut rig = Rig::new("killed").await?;
    rig.start_agent().await?;
    rig.ready().await?;
    let member = rig.member("p1", "w1").await?;
    rig.released(&member.main).await?;
    rig.containerd.kill()?;
    // The agent has the order, but no runtime to carry it out.
    rig.order("w1", 2).await?;
    eventually("the agent to miss its runtime", LIMIT, async || {
        ensure!(http::get(&rig.health, "/readyz").await.is_err(), "ready");
        Ok(())
    })
    .await?;
    rig.containerd.restart().await?;
    for id in [&member.main, &member.side] {
        ensure!(
            rig.kubelet.ended(id, LIMIT).await?.exit_code == 137,
            "stopped"
        );
    }
    let main = rig
        .kubelet
        .run_container(&member.pod, "main", 1, STUBBORN)
        .await?;
    // Again, while the agent processes the event of the new container.
    rig.containerd.kill()?;
    rig.containerd.restart().await?;
    rig.arrived(&main).await?;
    rig.ready().await?;
    ensure!(
        rig.kubelet.runs(&main).await?,
        "the new container was stopped"
    );
    let once = [member.main, member.side].map(|id| (id, 1)).into();
    let kills = rig.containerd.kills()?;
    ensure!(
        kills == once,
        "the runtime has killed {kills:?}, not {once:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_waits_for_its_admission_policy_and_exits_on_sigterm() -> Result<()> {
    let mut rig = Rig::new("guard").await?;
    let binding = "validatingadmissionpolicybinding/lockstep-node-agents";
    rig.cluster.kubectl(&["delete", binding]).await?;
    let stranger = rig
        .cluster
        .client_as(&format!("sa:lockstep-agent:lockstep-agent:{NODE}"))
        .await?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the policy to be out of force", LIMIT, async || {
        let other = NodeAgent::new("another-node", NodeAgentSpec {});
        Ok(Api::all(stranger.clone()).create(&dry, &other).await?)
    })
    .await?;
    rig.start_agent().await?;
    let log = rig.agent.as_ref().context("an agent")?.log().to_owned();
    eventually("the agent to say what is wrong", LIMIT, async || {
        let text = std::fs::read_to_string(&log)?;
        text.contains("apply config/policies")
            .then_some(())
            .context("not said")
    })
    .await?;
    let member = rig.member("p1", "w1").await?;
    rig.order("w1", 2).await?;
    ensure!(
        http::get(&rig.health, "/readyz").await.is_err(),
        "ready without its policy"
    );
    ensure!(
        rig.kubelet.runs(&member.main).await?,
        "it acted without its policy"
    );
    let policies = lockstep_cluster::cluster::repository()
        .join("config/policies")
        .display()
        .to_string();
    rig.cluster.kubectl(&["apply", "-k", &policies]).await?;
    rig.ready().await?;
    rig.released(&member.main).await?;
    let agent = rig.agent.take().context("an agent")?;
    let status = agent.terminate(LIMIT).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}
