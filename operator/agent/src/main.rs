//! `lockstep-agent`: arguments, logging, connections, signals, exit codes. The library has the
//! rest.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::Parser;
use kube::Client;
use lockstep_agent::cri::{CriRuntime, Intervals};
use lockstep_agent::guard::policy_in_force;
use lockstep_agent::health::Readiness;
use lockstep_agent::metrics::Metrics;
use lockstep_agent::orders::{Orders, follow};
use lockstep_agent::store::FileStore;
use lockstep_agent::supervisors::SupervisorLinks;
use lockstep_agent::{Agent, AgentArgs};
use lockstep_common::api_server::kube_config;
use lockstep_common::connection;
use lockstep_common::endpoints::{SharedRegistry, listen, serve_health, serve_metrics};
use lockstep_common::signals::ended_by_signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};

/// Exit code for wrong arguments, as in clap.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = AgentArgs::parse();
    if let Err(error) = args.log.start() {
        eprintln!("lockstep-agent: {error:#}");
        return ExitCode::from(USAGE);
    }
    // One thread: an agent is mostly idle, and each further thread costs a stack and an allocator
    // arena.
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %format_args!("{error:#}"), "ended");
            ExitCode::FAILURE
        }
    }
}

/// Runs until a signal arrives. Dropping the tasks loses nothing: the agent persists all decisions
/// before it acts.
async fn serve(args: AgentArgs) -> Result<()> {
    let ended = ended_by_signal()?;
    let client = connect(&args).await?;
    let (metrics, readiness, registry) = (
        Metrics::default(),
        Readiness::default(),
        SharedRegistry::default(),
    );
    metrics.register(&mut registry.lock());
    let mut tasks = JoinSet::new();
    let listener = listen("health", args.health_address)
        .await
        .context("--health-address")?;
    let probed = readiness.clone();
    tasks.spawn(serve_health(listener, move || probed.report()));
    let listener = listen("metrics", args.metrics_address)
        .await
        .context("--metrics-address")?;
    tasks.spawn(serve_metrics(listener, [("/metrics", registry)]));
    info!(
        version = lockstep_version::VERSION,
        commit = lockstep_version::COMMIT,
        node = args.node_name,
        runtime = %args.runtime_endpoint,
        state = %args.state_dir.display(),
        "starting"
    );
    tokio::select! {
        biased;
        name = ended => info!(signal = name, "stopping"),
        () = work(args, client, metrics, readiness) => {}
    }
    Ok(())
}

async fn work(args: AgentArgs, client: Client, metrics: Metrics, readiness: Readiness) {
    policy_in_force(&client, &args.node_name, &readiness).await;
    let orders = watch::Sender::new(Orders::default());
    let supervisors = args.supervise.then(|| {
        let random = fastrand::Rng::new();
        let own_pod_uid = args.pod_uid.as_deref();
        let debounce = args.debounce();
        SupervisorLinks::new(&args.kubelet_dir, own_pod_uid, debounce, random, &metrics)
    });
    let (node, ready) = (args.node_name.clone(), readiness.clone());
    let agent = Agent {
        supervisors,
        runtime: CriRuntime::new(&args.runtime_endpoint, Intervals::default(), &metrics),
        store: FileStore::new(&args.state_dir, args.former_state_dir.as_deref()),
        client: client.clone(),
        orders: orders.clone(),
        now: Arc::new(now),
        debounce: args.debounce(),
        node: args.node_name,
        metrics,
        readiness,
    };
    tokio::select! {
        never = follow(client, &node, orders, &ready) => match never {},
        never = agent.run() => match never {},
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the process reads its wall clock"
)]
fn now() -> DateTime<Utc> {
    Utc::now()
}

async fn connect(args: &AgentArgs) -> Result<Client> {
    let config = kube_config(args.kubeconfig.as_deref()).await?;
    connection::connect_http2(config).context("connection to the API server")
}
