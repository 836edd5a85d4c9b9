//! Commands `exec`, `cp`, `port-forward` and `get`: kubectl with a member's pod.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, bail};
use kube::{CustomResourceExt, ResourceExt};
use lockstep_api::TrainingWorkload;

use crate::args::{Connection, CpArgs, ExecArgs, GetArgs, MemberArgs, PortForwardArgs};
use crate::cluster::ClusterReader;
use crate::members::{path_in_member, pod_of, training_container};
use crate::outcome::Outcome;
use crate::problem::root;

/// Variable with the path of kubectl.
const KUBECTL: &str = "KUBECTL";

/// The pod of a member.
struct Target {
    namespace: String,
    pod: String,
    container: String,
}

impl Target {
    async fn find(
        cluster: &ClusterReader,
        namespace: Option<&str>,
        name: &str,
        member: Option<&str>,
    ) -> Result<Self> {
        let namespace = namespace.unwrap_or(cluster.namespace());
        let workload = cluster.workload(namespace, name).await?;
        let pods = cluster.pods_of(&workload).await?;
        let pod = pod_of(&workload, &pods, member)?;
        Ok(Self {
            namespace: namespace.to_owned(),
            pod: pod.name_any(),
            container: training_container(pod),
        })
    }

    async fn of(cluster: &ClusterReader, args: &MemberArgs) -> Result<Self> {
        let (namespace, member) = (args.namespace.as_deref(), args.choice());
        Self::find(cluster, namespace, &args.name, member.as_deref()).await
    }

    /// The verb of kubectl, with namespace and container. `container`: the container that the user
    /// chose.
    fn verb(&self, verb: &str, container: Option<&str>) -> Vec<OsString> {
        let container = container.unwrap_or(&self.container);
        [verb, "-n", &self.namespace, "-c", container]
            .map(OsString::from)
            .into()
    }
}

/// Arguments of `kubectl exec`.
pub async fn exec(cluster: &ClusterReader, args: &ExecArgs) -> Result<Vec<OsString>> {
    let target = Target::of(cluster, &args.member).await?;
    let mut words = target.verb("exec", args.container.as_deref());
    words.extend(args.stdin.then(|| "-i".into()));
    words.extend(args.tty.then(|| "-t".into()));
    words.extend([target.pod.into(), "--".into()]);
    words.extend(args.command.iter().cloned());
    Ok(words)
}

/// Arguments of `kubectl cp`.
pub async fn cp(cluster: &ClusterReader, args: &CpArgs) -> Result<Vec<OsString>> {
    let paths = [args.source.as_str(), &args.destination];
    let parsed = paths.map(path_in_member);
    let ([Some((name, member, _)), None] | [None, Some((name, member, _))]) = parsed else {
        bail!(
            "one of the two paths must be in a member, as NAME:PATH or NAME/MEMBER:PATH, and the other one local"
        )
    };
    let namespace = args.namespace.as_deref();
    let target = Target::find(cluster, namespace, name, member).await?;
    let mut words = target.verb("cp", args.container.as_deref());
    words.extend(args.no_preserve.then(|| "--no-preserve".into()));
    words.extend(args.retries.map(|n| format!("--retries={n}").into()));
    words.push("--".into());
    words.extend(paths.into_iter().zip(parsed).map(|(local, remote)| {
        let remote = remote.map(|(_, _, path)| format!("{}:{path}", target.pod));
        remote.unwrap_or_else(|| local.to_owned()).into()
    }));
    Ok(words)
}

/// Arguments of `kubectl port-forward`.
pub async fn port_forward(
    cluster: &ClusterReader,
    args: &PortForwardArgs,
) -> Result<Vec<OsString>> {
    let target = Target::of(cluster, &args.member).await?;
    let words = ["port-forward", "-n", &target.namespace];
    let mut words: Vec<OsString> = words.map(OsString::from).into();
    let address = args.address.as_ref();
    words.extend(address.map(|a| format!("--address={a}").into()));
    words.extend(["--".into(), format!("pod/{}", target.pod).into()]);
    words.extend(args.ports.iter().map(OsString::from));
    Ok(words)
}

/// Arguments of `kubectl get`.
pub fn get(args: &GetArgs) -> Vec<OsString> {
    let mut words = vec!["get".into(), TrainingWorkload::crd_name().into()];
    words.extend(args.arguments.iter().cloned());
    words
}

/// Replaces this process by kubectl. The flags of the connection follow the verb, before its
/// arguments.
pub fn run(connection: &Connection, mut words: Vec<OsString>) -> Result<Outcome> {
    words.splice(1..1, connection.given.clone());
    let named = std::env::var_os(KUBECTL).filter(|path| !path.is_empty());
    let program = named.unwrap_or_else(|| "kubectl".into());
    let why = match replace_by(Command::new(&program).args(&words)) {
        Ok(code) => std::process::exit(code),
        Err(why) => root(&why),
    };
    let program = program.display();
    bail!("cannot run {program}: {why}; put kubectl in PATH, or set {KUBECTL} to its path")
}

/// Returns only if the program cannot be run.
#[cfg(unix)]
fn replace_by(command: &mut Command) -> std::io::Result<i32> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

/// Returns the exit code of the program.
#[cfg(not(unix))]
fn replace_by(command: &mut Command) -> std::io::Result<i32> {
    Ok(command.status()?.code().unwrap_or(1))
}
