//! `lockstep-manager`: arguments, logging, connections, signals, exit codes. Everything else is in
//! the library.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig};
use lockstep_manager::api::clients::Transports;
use lockstep_manager::clock::{Random, SystemClock};
use lockstep_manager::config::Config;
use lockstep_manager::metrics::SharedRegistry;
use lockstep_manager::server::{Health, serve_health, serve_metrics};
use lockstep_manager::{Deps, run};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Gang-scheduled training jobs that restart in place.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Configuration file (YAML). An unknown key ends the process.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig. Default: that of the environment, else the service account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Format of the log.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Level, or filter such as `info,lockstep_manager=debug`.
    #[arg(long, default_value = "info")]
    log_level: String,
    /// Print the effective configuration and end.
    #[arg(long)]
    print_config: bool,
    /// Name of the pod: identity in the leader election. Default: a random one.
    #[arg(long, env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
    /// Namespace of the pod. Default: that of the kubeconfig.
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Exit code of wrong arguments or configuration, as clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match read_config(&args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("lockstep-manager: {error:#}");
            return ExitCode::from(USAGE);
        }
    };
    if args.print_config {
        print!("{}", config.to_yaml());
        return ExitCode::SUCCESS;
    }
    if let Err(error) = start_log(&args) {
        eprintln!("lockstep-manager: {error:#}");
        return ExitCode::from(USAGE);
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(manage(args, config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %format_args!("{error:#}"), "ended");
            ExitCode::FAILURE
        }
    }
}

fn read_config(args: &Args) -> Result<Config> {
    let Some(path) = &args.config else {
        return Ok(Config::default());
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::parse(&text).with_context(|| format!("configuration {}", path.display()))
}

fn start_log(args: &Args) -> Result<()> {
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

async fn manage(args: Args, config: Config) -> Result<()> {
    let kube_config = match &args.kubeconfig {
        Some(path) => {
            kube::Config::from_custom_kubeconfig(
                Kubeconfig::read_from(path)?,
                &KubeConfigOptions::default(),
            )
            .await?
        }
        None => kube::Config::infer().await?,
    };
    let random = Random::seeded(fastrand::u64(..));
    let namespace = args
        .pod_namespace
        .unwrap_or_else(|| kube_config.default_namespace.clone());
    let identity = args
        .pod_name
        .unwrap_or_else(|| format!("lockstep-manager-{}", random.id()));
    let transports = Transports::connect(kube_config).context("connection to the API server")?;

    let registry = SharedRegistry::default();
    let health = Health::default();
    let mut servers = JoinSet::new();
    servers.spawn(serve_health(
        listen(config.health.bind_address, "health").await?,
        health.clone(),
    ));
    servers.spawn(serve_metrics(
        listen(config.metrics.bind_address, "metrics").await?,
        registry.clone(),
    ));

    let stop = CancellationToken::new();
    servers.spawn(stop_on_signal(stop.clone())?);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        identity, namespace, "starting"
    );
    let clock = Arc::new(SystemClock);
    run(Deps {
        transports,
        clock,
        random,
        config,
        identity,
        namespace,
        registry,
        health,
        stop,
    })
    .await?;
    Ok(())
}

async fn listen(address: std::net::SocketAddr, what: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("{what}.bindAddress {address}"))?;
    info!(endpoint = what, address = %listener.local_addr()?, "listening");
    Ok(listener)
}

/// The first SIGTERM or SIGINT asks for a graceful end.
fn stop_on_signal(stop: CancellationToken) -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        info!("stopping");
        stop.cancel();
    })
}
