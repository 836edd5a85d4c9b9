//! Shell completion in kubectl's protocol: words in, one candidate per line and a directive out.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use lockstep_api::workload::TrainingWorkloadSpec;

use super::show::write;
use crate::args::{Args, CompletionArgs, Connection};
use crate::cluster::{ClusterReader, names_in_kubeconfig};
use crate::outcome::Outcome;

/// Longest wait for the cluster after the tab key.
const PATIENCE: Duration = Duration::from_secs(1);
/// cobra's `ShellCompDirectiveNoFileComp`.
const NO_FILES: u8 = 4;
/// cobra's `ShellCompDirectiveNoSpace`, for an incomplete folder path.
const NO_SPACE: u8 = 2;
/// Name of the program that kubectl calls for completion.
const HOOK: &str = "kubectl_complete-lockstep";
const HOOK_SCRIPT: &str = "#!/bin/sh\n# kubectl runs this program to complete `kubectl lockstep`.\nexec kubectl-lockstep __complete \"$@\"\n";

pub fn completion(args: &CompletionArgs) -> Result<Outcome> {
    if let Some(folder) = &args.kubectl {
        let path = folder.join(HOOK);
        let file = || path.display().to_string();
        std::fs::write(&path, HOOK_SCRIPT).with_context(file)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let permissions = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, permissions).with_context(file)?;
        }
        note!(
            "{}: kubectl runs this program if its folder is in PATH",
            file()
        );
    } else if let Some(shell) = args.shell {
        let mut script = Vec::new();
        let mut command = Args::command();
        clap_complete::generate(shell, &mut command, "kubectl-lockstep", &mut script);
        write(&String::from_utf8_lossy(&script))?;
    }
    Ok(Outcome::Done)
}

#[derive(Clone, Copy, Debug)]
enum Live {
    Workloads,
    Groups,
    Ranks,
    Namespaces,
    Contexts,
    Clusters,
    Users,
}

impl Live {
    fn of(argument: &str) -> Option<Self> {
        Some(match argument {
            "name" | "workloads" => Self::Workloads,
            "group" => Self::Groups,
            "rank" => Self::Ranks,
            "namespace" | "agent_namespace" | "manager_namespace" => Self::Namespaces,
            "context" => Self::Contexts,
            "cluster" => Self::Clusters,
            "user" => Self::Users,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Typed {
    connection: Connection,
    namespace: Option<String>,
    name: Option<String>,
}

pub fn complete(words: &[OsString]) -> Result<Outcome> {
    let program = OsString::from("kubectl-lockstep");
    let mut line = vec![program];
    line.extend(words.iter().cloned());
    if words.is_empty() {
        line.push(OsString::new());
    }
    let last = line.len() - 1;
    let current = line[last].to_string_lossy().into_owned();
    let typed = typed(&line[..last]);
    let mut command = with_live(Args::command(), &typed);
    let folder = std::env::current_dir().ok();
    let found = clap_complete::engine::complete(&mut command, line, last, folder.as_deref());
    let mut out = String::new();
    let mut directive = NO_FILES;
    for candidate in found.unwrap_or_default() {
        let value = candidate.get_value().to_string_lossy();
        // As in kubectl, flags are candidates only after a dash.
        let flag = value.starts_with('-') && !current.starts_with('-');
        if flag || candidate.is_hide_set() || !value.starts_with(&current) {
            continue;
        }
        if value.ends_with('/') {
            directive = NO_FILES | NO_SPACE;
        }
        out.push_str(&value);
        if let Some(help) = candidate.get_help() {
            let help = help.to_string();
            out.push('\t');
            out.push_str(help.lines().next().unwrap_or_default());
        }
        out.push('\n');
    }
    write(&format!("{out}:{directive}\n"))?;
    Ok(Outcome::Done)
}

fn typed(line: &[OsString]) -> Typed {
    let command = Args::command().ignore_errors(true);
    let Ok(matches) = command.try_get_matches_from(line) else {
        return Typed::default();
    };
    let verb: &ArgMatches = matches.subcommand().map_or(&matches, |(_, verb)| verb);
    let text = |id: &str| verb.try_get_one::<String>(id).ok().flatten().cloned();
    let mut connection = Connection::from_arg_matches(verb).unwrap_or_default();
    connection.request_timeout = PATIENCE;
    Typed {
        connection,
        namespace: text("namespace"),
        name: text("name"),
    }
}

fn with_live(command: clap::Command, typed: &Typed) -> clap::Command {
    let mut command = command.mut_args(|arg| live_arg(arg, typed));
    for verb in command.get_subcommands_mut() {
        *verb = std::mem::take(verb).mut_args(|arg| live_arg(arg, typed));
    }
    command
}

fn live_arg(arg: clap::Arg, typed: &Typed) -> clap::Arg {
    let Some(live) = Live::of(arg.get_id().as_str()) else {
        return arg;
    };
    let typed = typed.clone();
    arg.add(ArgValueCandidates::new(move || {
        let names = candidates(live, &typed);
        names.into_iter().map(CompletionCandidate::new).collect()
    }))
}

/// Candidates; empty if the cluster does not answer in time. Completion never prints errors.
fn candidates(live: Live, typed: &Typed) -> Vec<String> {
    let file = |what| names_in_kubeconfig(typed.connection.kubeconfig.as_deref(), what);
    match live {
        Live::Contexts => return file("contexts"),
        Live::Clusters => return file("clusters"),
        Live::Users => return file("users"),
        Live::Workloads | Live::Groups | Live::Ranks | Live::Namespaces => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let fetching = async { tokio::time::timeout(PATIENCE, fetch(live, typed)).await };
    match runtime.block_on(fetching) {
        Ok(Ok(names)) => names,
        _ => Vec::new(),
    }
}

async fn fetch(live: Live, typed: &Typed) -> Result<Vec<String>> {
    let cluster = ClusterReader::connect(&typed.connection).await?;
    let namespace = typed.namespace.as_deref().unwrap_or(cluster.namespace());
    let name = typed.name.as_deref();
    Ok(match live {
        Live::Workloads => {
            let found = cluster.selected(Some(namespace), "").await?;
            found.into_iter().map(|(_, name)| name).collect()
        }
        Live::Namespaces => cluster.namespaces().await?,
        Live::Groups => {
            let spec = spec(&cluster, namespace, name).await?;
            spec.groups.into_iter().map(|g| g.name).collect()
        }
        Live::Ranks => {
            let members = spec(&cluster, namespace, name).await?.members();
            (0..members).map(|rank| rank.to_string()).collect()
        }
        Live::Contexts | Live::Clusters | Live::Users => Vec::new(),
    })
}

async fn spec(
    cluster: &ClusterReader,
    namespace: &str,
    name: Option<&str>,
) -> Result<TrainingWorkloadSpec> {
    let name = name.context("no workload is named")?;
    Ok(cluster.workload(namespace, name).await?.spec)
}

pub fn is_completion_request(words: &[OsString]) -> Option<&[OsString]> {
    let (first, rest) = words.split_first()?;
    (first == OsStr::new("__complete")).then_some(rest)
}
