//! Command line and environment of a container, for a process on this machine.
//!
//! Substitution replaces the namespaces of a container runtime: paths below a volume's mount path
//! become paths in the volume's folder. Names of the pods behind a headless Service become their
//! IPs, because DNS is absent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, EnvVar};
use thiserror::Error;

use super::addresses::Names;
use crate::model::PodDesc;

/// Values that a program can refer to.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// IP of the pod.
    pub ip: &'a str,
    /// Name of its node.
    pub node: &'a str,
    /// IPs of pods by namespace, subdomain and hostname.
    pub names: &'a Names,
    /// Folders of the pod's volumes, by volume name. `None` leaves paths unchanged.
    pub volumes: Option<&'a BTreeMap<String, PathBuf>>,
}

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments, at least one.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
}

/// Why a program cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unstartable {
    /// Images are not run, so the command is required.
    #[error("container has no command")]
    NoCommand,
    /// A variable has an unsupported source.
    #[error("variable {0} comes from a source that only a cluster has")]
    Source(String),
    /// A volume is neither emptyDir nor hostPath.
    #[error("volume {0} is neither emptyDir nor hostPath")]
    Volume(String),
    /// A pod that the program names has no IP yet. Should be retried soon.
    #[error("{0} has no address yet")]
    NoAddress(String),
}

/// Command line and environment of a container of the pod.
pub fn program(
    pod: &PodDesc,
    container: &Container,
    around: &Surroundings<'_>,
) -> Result<Program, Unstartable> {
    let env = environment(pod, container, around)?;
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        return Err(Unstartable::NoCommand);
    }
    let mut argv = Vec::new();
    for part in [&container.command, &container.args] {
        argv.extend(words(pod, container, around, &env, part.as_deref())?);
    }
    Ok(Program { argv, env })
}

/// Environment of a container of the pod, as the manifest sets it.
pub fn environment(
    pod: &PodDesc,
    container: &Container,
    around: &Surroundings<'_>,
) -> Result<Vec<(String, String)>, Unstartable> {
    if container
        .env_from
        .as_ref()
        .is_some_and(|from| !from.is_empty())
    {
        return Err(Unstartable::Source("envFrom".into()));
    }
    let mut env: Vec<(String, String)> = Vec::new();
    for variable in container.env.iter().flatten() {
        let raw = value(pod, variable, around)?;
        let value = place(pod, container, around, &expand(&raw, &env))?;
        env.retain(|(name, _)| *name != variable.name);
        env.push((variable.name.clone(), value));
    }
    Ok(env)
}

/// Command or arguments of a container of the pod.
pub fn words(
    pod: &PodDesc,
    container: &Container,
    around: &Surroundings<'_>,
    env: &[(String, String)],
    raw: Option<&[String]>,
) -> Result<Vec<String>, Unstartable> {
    let all = raw.unwrap_or_default().iter();
    all.map(|word| place(pod, container, around, &expand(word, env)))
        .collect()
}

fn value(
    pod: &PodDesc,
    variable: &EnvVar,
    around: &Surroundings<'_>,
) -> Result<String, Unstartable> {
    let Some(source) = &variable.value_from else {
        return Ok(variable.value.clone().unwrap_or_default());
    };
    let unknown = || Unstartable::Source(variable.name.clone());
    let path = source
        .field_ref
        .as_ref()
        .ok_or_else(unknown)?
        .field_path
        .as_str();
    let keyed = |prefix: &str, map: &BTreeMap<String, String>| {
        let key = path.strip_prefix(prefix)?.strip_suffix("']")?;
        Some(map.get(key).cloned().unwrap_or_default())
    };
    match path {
        "metadata.name" => Ok(pod.name.clone()),
        "metadata.namespace" => Ok(pod.namespace.clone()),
        "metadata.uid" => Ok(pod.uid.clone()),
        "spec.nodeName" => Ok(around.node.to_owned()),
        "spec.serviceAccountName" => Ok(pod.spec.service_account_name.clone().unwrap_or_default()),
        "status.podIP" | "status.podIPs" => Ok(around.ip.to_owned()),
        "status.hostIP" => Ok("127.0.0.1".into()),
        _ => keyed("metadata.labels['", &pod.labels)
            .or_else(|| keyed("metadata.annotations['", &pod.annotations))
            .ok_or_else(unknown),
    }
}

/// Replaces `$(NAME)` of variables defined before. `$$` becomes `$`, and undefined names stay.
fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix('(').and_then(|r| r.split_once(')'));
        match reference
            .and_then(|(name, after)| Some((env.iter().find(|(n, _)| n == name)?, after)))
        {
            Some(((_, value), after)) => {
                out.push_str(value);
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

/// Replaces names by addresses and mount paths by folders, word by word.
fn place(
    pod: &PodDesc,
    container: &Container,
    around: &Surroundings<'_>,
    text: &str,
) -> Result<String, Unstartable> {
    let mut out = String::new();
    for word in text.split_inclusive([' ', '\n', '\t', '=', ',', ':', ';', '"', '\'']) {
        let end = word
            .trim_end_matches([' ', '\n', '\t', '=', ',', ':', ';', '"', '\''])
            .len();
        let (word, separator) = word.split_at(end);
        match address(pod, around, word)? {
            Some(ip) => out.push_str(ip),
            None => {
                out.push_str(&folder(container, around, word)?.unwrap_or_else(|| word.to_owned()));
            }
        }
        out.push_str(separator);
    }
    Ok(out)
}

/// The IP of `HOSTNAME.SUBDOMAIN`, with or without the cluster's domain, for pods of the same
/// Service.
fn address<'a>(
    pod: &PodDesc,
    around: &'a Surroundings<'_>,
    word: &str,
) -> Result<Option<&'a str>, Unstartable> {
    let Some(subdomain) = pod.spec.subdomain.as_deref() else {
        return Ok(None);
    };
    let mut labels = word.split('.');
    let (Some(host), Some(domain)) = (labels.next(), labels.next()) else {
        return Ok(None);
    };
    let rest: Vec<_> = labels.collect();
    let full = [pod.namespace.as_str(), "svc", "cluster", "local"];
    if host.is_empty() || domain != subdomain || !full.starts_with(&rest) {
        return Ok(None);
    }
    let key = (pod.namespace.clone(), subdomain.to_owned(), host.to_owned());
    around
        .names
        .get(&key)
        .map(|ip| Some(ip.as_str()))
        .ok_or_else(|| Unstartable::NoAddress(word.to_owned()))
}

/// The path on this machine for `word`, if `word` is a path in a volume.
fn folder(
    container: &Container,
    around: &Surroundings<'_>,
    word: &str,
) -> Result<Option<String>, Unstartable> {
    let Some(volumes) = around.volumes else {
        return Ok(None);
    };
    for mount in container.volume_mounts.iter().flatten() {
        let Some(below) = word.strip_prefix(mount.mount_path.trim_end_matches('/')) else {
            continue;
        };
        if !below.is_empty() && !below.starts_with('/') {
            continue;
        }
        let root = volumes
            .get(&mount.name)
            .ok_or_else(|| Unstartable::Volume(mount.name.clone()))?;
        return Ok(Some(format!("{}{below}", root.display())));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(container: &Value) -> Result<Program, Unstartable> {
        let spec = json!({"subdomain": "llama", "containers": [container]});
        let pod = PodDesc {
            namespace: "ns".into(),
            name: "llama-workers-0-1-abc".into(),
            labels: [("a/b".to_owned(), "label".to_owned())].into(),
            spec: serde_json::from_value(spec).unwrap(),
            ..PodDesc::default()
        };
        let names = [(
            ("ns".into(), "llama".into(), "llama-workers-0-0".into()),
            "127.1.0.1".into(),
        )]
        .into();
        let volumes = [("ckpt".to_owned(), PathBuf::from("/tmp/v"))].into();
        let around = Surroundings {
            ip: "127.1.0.2",
            node: "n1",
            names: &names,
            volumes: Some(&volumes),
        };
        program(&pod, &pod.spec.containers[0], &around)
    }

    fn env(value: Value) -> Result<String, Unstartable> {
        let mut variable = value;
        variable["name"] = json!("X");
        let before = json!({"name": "PORT", "value": "29400"});
        let made = made(
            &json!({"name": "c", "command": ["true"], "env": [before, variable],
            "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt"}]}),
        )?;
        Ok(made.env.iter().find(|(n, _)| n == "X").unwrap().1.clone())
    }

    fn plain(value: &str) -> Result<String, Unstartable> {
        env(json!({"value": value}))
    }

    #[test]
    fn names_of_the_service_become_addresses() {
        assert_eq!(plain("llama-workers-0-0.llama").unwrap(), "127.1.0.1");
        assert_eq!(plain("tcp://x").unwrap(), "tcp://x");
        assert_eq!(
            plain("llama-workers-0-0.llama.ns.svc.cluster.local:$(PORT)").unwrap(),
            "127.1.0.1:29400"
        );
        assert_eq!(
            plain("llama-workers-0-0.other").unwrap(),
            "llama-workers-0-0.other"
        );
        assert_eq!(
            plain("llama-workers-0-7.llama"),
            Err(Unstartable::NoAddress("llama-workers-0-7.llama".into()))
        );
    }

    #[test]
    fn mount_paths_become_folders_of_the_volume() {
        assert_eq!(plain("/ckpt/step.json").unwrap(), "/tmp/v/step.json");
        assert_eq!(plain("--dir=/ckpt --x").unwrap(), "--dir=/tmp/v --x");
        assert_eq!(plain("/ckpt2").unwrap(), "/ckpt2");
    }

    #[test]
    fn fields_of_the_pod_are_known_and_other_sources_are_refused() {
        let field = |path: &str| env(json!({"valueFrom": {"fieldRef": {"fieldPath": path}}}));
        assert_eq!(field("metadata.name").unwrap(), "llama-workers-0-1-abc");
        assert_eq!(field("status.podIP").unwrap(), "127.1.0.2");
        assert_eq!(field("metadata.labels['a/b']").unwrap(), "label");
        assert_eq!(field("spec.unknown"), Err(Unstartable::Source("X".into())));
        let secret = env(json!({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}));
        assert_eq!(secret, Err(Unstartable::Source("X".into())));
    }

    #[test]
    fn references_expand_and_double_dollars_do_not() {
        assert_eq!(
            plain("$(PORT) $$(PORT) $(NOPE) $").unwrap(),
            "29400 $(PORT) $(NOPE) $"
        );
    }

    #[test]
    fn an_image_without_a_command_is_refused() {
        assert_eq!(
            made(&json!({"name": "c", "args": ["x"]})),
            Err(Unstartable::NoCommand)
        );
    }
}
