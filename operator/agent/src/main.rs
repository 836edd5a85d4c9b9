//! `lockstep-agent`: arguments, logging, connections, signals, exit codes. Everything else is in
//! the library.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::Parser;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use lockstep_agent::args::{LogArgs, LogFormat};
use lockstep_agent::cri::{CriRuntime, Intervals};
use lockstep_agent::guard::policy_in_force;
use lockstep_agent::health::{Readiness, serve_health, serve_metrics};
use lockstep_agent::metrics::Metrics;
use lockstep_agent::orders::{Orders, follow};
use lockstep_agent::store::FileStore;
use lockstep_agent::supervisors::SupervisorLinks;
use lockstep_agent::{Agent, AgentArgs};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Exit code of wrong arguments, as clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = AgentArgs::parse();
    if let Err(error) = start_log(&args.log) {
        eprintln!("lockstep-agent: {error:#}");
        return ExitCode::from(USAGE);
    }
    // One thread: an agent waits nearly always, and each more has a stack and an allocator arena.
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

fn start_log(args: &LogArgs) -> Result<()> {
    let filter = EnvFilter::try_new(&args.log_level).context("--log-level")?;
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Works until a signal asks for the end. Dropping the work loses nothing: what matters is on disk
/// before it shows.
async fn serve(args: AgentArgs) -> Result<()> {
    let ended = ended_by_signal()?;
    let client = connect(&args).await?;
    let (metrics, readiness, mut registry) = (
        Metrics::default(),
        Readiness::default(),
        Registry::default(),
    );
    metrics.register(&mut registry);
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_health(
        listen(args.health_address, "health").await?,
        readiness.clone(),
    ));
    tasks.spawn(serve_metrics(
        listen(args.metrics_address, "metrics").await?,
        Arc::new(registry),
    ));
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
    let agent = Agent {
        supervisors,
        runtime: CriRuntime::new(&args.runtime_endpoint, Intervals::default(), &metrics),
        store: FileStore::new(&args.state_dir),
        client: client.clone(),
        orders: orders.subscribe(),
        now: Arc::new(now),
        debounce: args.debounce(),
        node: args.node_name,
        metrics,
        readiness,
    };
    tokio::select! {
        never = follow(client, orders) => match never {},
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
    let mut config = match &args.kubeconfig {
        Some(path) => {
            kube::Config::from_custom_kubeconfig(
                Kubeconfig::read_from(path)?,
                &KubeConfigOptions::default(),
            )
            .await?
        }
        None => kube::Config::infer().await?,
    };
    // Stock retries repeat every verb for minutes; each caller here repeats what it may.
    config.default_retry = false;
    Client::try_from(config).context("connection to the API server")
}

async fn listen(address: SocketAddr, what: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--{what}-address {address}"))?;
    info!(endpoint = what, address = %listener.local_addr()?, "listening");
    Ok(listener)
}

/// Name of the first SIGTERM or SIGINT.
fn ended_by_signal() -> Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
