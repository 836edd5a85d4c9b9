//! `lockstep-manager`: arguments, logging, connections, signals and exit codes. The library
//! contains everything else.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use lockstep_common::api_server::kube_config;
use lockstep_common::endpoints::{SharedRegistry, listen, serve_health, serve_metrics};
use lockstep_common::log::LogArgs;
use lockstep_common::signals::ended_by_signal;
use lockstep_manager::api::clients::Transports;
use lockstep_manager::clock::{Random, SystemClock};
use lockstep_manager::components::{AgentSettings, Components, RuntimeEndpoint};
use lockstep_manager::config::live::{self, LiveLog, LiveValues};
use lockstep_manager::config::{Config, ConfigSource};
use lockstep_manager::health::Health;
use lockstep_manager::policy_check::{PolicyMetric, watch_policies};
use lockstep_manager::{Deps, process, run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

/// musl's allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gang-scheduled training jobs that restart in place.
#[derive(Debug, Parser)]
#[command(version = lockstep_version::LONG, about)]
struct Args {
    /// Run another program instead of the manager.
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file (YAML). An unknown key is an error.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Defaults for keys that are missing in the configuration file, as YAML. With defaults, the
    /// file is optional.
    #[arg(long, value_name = "YAML")]
    defaults: Option<String>,
    /// Kubeconfig file. Default: the kubeconfig of the environment, else the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Print the effective configuration and exit.
    #[arg(long)]
    print_config: bool,
    /// Name of the pod, used as identity in the leader election. Default: a random name.
    #[arg(long, env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
    /// Namespace of the pod. Default: the namespace of the kubeconfig.
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Apply objects that a bundle of the Operator Lifecycle Manager cannot contain: admission
    /// policies and flow control. If the runtime's socket is set, also the node agents.
    Components(ComponentsArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct ComponentsArgs {
    /// Deployment of this process. It owns the DaemonSet of the node agents.
    #[arg(long, value_name = "NAME", default_value = "lockstep-components")]
    deployment: String,
    /// Image of the node agents.
    #[arg(long, value_name = "IMAGE", env = "RELATED_IMAGE_AGENT")]
    agent_image: String,
    /// Socket of the container runtime on the nodes, such as
    /// unix:///run/containerd/containerd.sock. Empty: the node agents are removed.
    #[arg(
        long,
        value_name = "ENDPOINT",
        env = "LOCKSTEP_AGENT_RUNTIME_ENDPOINT",
        default_value = ""
    )]
    runtime_endpoint: String,
}

const REQUEST: Duration = Duration::from_secs(30);

/// Exit code for invalid arguments or configuration, like clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Components(components)) = &args.command {
        return apply_components(&args, components);
    }
    let source = ConfigSource {
        file: args.config.clone(),
        defaults: args.defaults.clone(),
    };
    let (config, text) = match read_config(&source) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("lockstep-manager: {error:#}");
            return ExitCode::from(USAGE);
        }
    };
    if args.print_config {
        print!("{}", config.to_yaml());
        return ExitCode::SUCCESS;
    }
    let log = match args.log.start() {
        Ok(log) => LiveLog::new(log, args.log.log_level.clone(), &config.log_level),
        Err(error) => {
            eprintln!("lockstep-manager: {error:#}");
            return ExitCode::from(USAGE);
        }
    };
    run_to_completion(manage(args, source, config, text, log))
}

fn run_to_completion(program: impl Future<Output = Result<()>>) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %format_args!("{error:#}"), "ended");
            ExitCode::FAILURE
        }
    }
}

fn apply_components(args: &Args, components: &ComponentsArgs) -> ExitCode {
    let started = args.log.start().and_then(|_| agent_settings(components));
    let agents = match started {
        Ok(agents) => agents,
        Err(error) => {
            eprintln!("lockstep-manager: {error:#}");
            return ExitCode::from(USAGE);
        }
    };
    run_to_completion(async {
        let mut kube_config = kube_config(args.kubeconfig.as_deref()).await?;
        kube_config.read_timeout = Some(REQUEST);
        let components = Components {
            namespace: namespace_of(args, &kube_config),
            deployment: components.deployment.clone(),
            agents,
        };
        let stop = CancellationToken::new();
        let stopping = stop_on_signal(stop.clone())?;
        let client = kube::Client::try_from(kube_config).context("connection to the API server")?;
        tokio::select! {
            () = stopping => {}
            () = components.run(client) => {}
        }
        Ok(())
    })
}

fn agent_settings(args: &ComponentsArgs) -> Result<Option<AgentSettings>> {
    if args.runtime_endpoint.is_empty() {
        return Ok(None);
    }
    let runtime = args.runtime_endpoint.parse::<RuntimeEndpoint>();
    Ok(Some(AgentSettings {
        image: args.agent_image.clone(),
        runtime: runtime.context("--runtime-endpoint")?,
    }))
}

fn read_config(source: &ConfigSource) -> Result<(Config, String)> {
    let (text, what) = match &source.file {
        Some(path) => {
            let text = source
                .text(std::fs::read_to_string(path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            (text, format!("configuration {}", path.display()))
        }
        None => (String::new(), "--defaults".to_owned()),
    };
    Ok((source.parse(&text).context(what)?, text))
}

fn namespace_of(args: &Args, kube_config: &kube::Config) -> String {
    let of_the_pod = args.pod_namespace.clone();
    of_the_pod.unwrap_or_else(|| kube_config.default_namespace.clone())
}

async fn manage(
    args: Args,
    source: ConfigSource,
    config: Config,
    text: String,
    log: LiveLog,
) -> Result<()> {
    let kube_config = kube_config(args.kubeconfig.as_deref()).await?;
    let random = Random::seeded(fastrand::u64(..));
    let namespace = namespace_of(&args, &kube_config);
    let identity = args
        .pod_name
        .unwrap_or_else(|| format!("lockstep-manager-{}", random.id()));
    // For dry runs, which need no lease.
    let dry_run_client =
        kube::Client::try_from(kube_config.clone()).context("connection to the API server")?;
    let transports = Transports::connect(kube_config).context("connection to the API server")?;

    let registry = SharedRegistry::default();
    let workload_registry = SharedRegistry::default();
    process::register(&mut registry.lock());
    let health = Health::default();
    let mut servers = JoinSet::new();
    let listener = listen("health", config.health.bind_address)
        .await
        .context("health.bindAddress")?;
    let probed = health.clone();
    servers.spawn(serve_health(listener, move || probed.readiness()));
    let listener = listen("metrics", config.metrics.bind_address)
        .await
        .context("metrics.bindAddress")?;
    let registries = [
        ("/metrics", registry.clone()),
        ("/metrics/workloads", workload_registry.clone()),
    ];
    servers.spawn(serve_metrics(listener, registries));

    health.await_policies();
    let policies = PolicyMetric::register(&mut registry.lock());
    servers.spawn(watch_policies(
        dry_run_client,
        namespace.clone(),
        health.clone(),
        policies,
    ));

    let values = LiveValues::new(&config);
    let (preemption, node_health) = (
        values.preemption.subscribe(),
        values.node_health.subscribe(),
    );
    servers.spawn(live::follow(source, text, config.clone(), values, log));
    let stop = CancellationToken::new();
    servers.spawn(stop_on_signal(stop.clone())?);
    info!(
        version = lockstep_version::VERSION,
        commit = lockstep_version::COMMIT,
        identity,
        namespace,
        "starting"
    );
    let clock = Arc::new(SystemClock);
    run(Deps {
        transports,
        clock,
        random,
        config,
        preemption,
        node_health,
        identity,
        namespace,
        registry,
        workload_registry,
        health,
        stop,
    })
    .await?;
    Ok(())
}

fn stop_on_signal(stop: CancellationToken) -> Result<impl Future<Output = ()>> {
    let ended = ended_by_signal()?;
    Ok(async move {
        let signal = ended.await;
        info!(signal, "stopping");
        stop.cancel();
    })
}
