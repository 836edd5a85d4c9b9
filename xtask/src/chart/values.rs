//! Values of the chart: defaults of the manifests, their schema and the table of the README.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use lockstep_manager::config::Config;
use serde_json::{Value, json};

use super::manifest::Manifests;
use super::template::at;
use crate::bundle::{Images, TAG};

/// Default of a value.
enum Default {
    /// A field of a manifest: file below `config/`, path in its object.
    Field(&'static str, &'static str),
    /// YAML.
    Yaml(&'static str),
    /// Part of the names of images.
    Image,
    /// The configuration as shipped, without keys that follow from other values.
    Configuration,
}

use Default::{Configuration, Field, Image, Yaml};

/// A value: path, default, schema beyond the type of the default, meaning.
type Row = (&'static str, Default, &'static str, &'static str);

const MANAGER: &str = "manager/deployment.yaml";
const AGENT: &str = "components/agent/daemonset.yaml";
/// A digest or nothing.
const DIGEST: &str = "{pattern: '^(sha256:[0-9a-f]{64})?$'}";
const NAME: &str = "{pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$', maxLength: 63}";
const FOLDER: &str = "{pattern: '^/'}";
const ANY: &str = "{}";

const ROWS: &[Row] = &[
    (
        "images.prefix",
        Image,
        ANY,
        "Prefix of all image names, up to and including the last slash.",
    ),
    (
        "images.tag",
        Image,
        "{minLength: 1}",
        "Tag of all images without a digest.",
    ),
    (
        "images.digests.manager",
        Image,
        DIGEST,
        "Digest of `lockstep-manager`, instead of the tag.",
    ),
    (
        "images.digests.agent",
        Image,
        DIGEST,
        "Digest of `lockstep-agent`, instead of the tag.",
    ),
    (
        "images.digests.run",
        Image,
        DIGEST,
        "Digest of the supervisor `lockstep-run`, which training pods pull.",
    ),
    (
        "images.pullSecrets",
        Yaml("[]"),
        "{items: {type: object}}",
        "Pull secrets of managers and agents, such as `[{name: registry}]`. Training pods have their own.",
    ),
    (
        "manager.replicas",
        Field(MANAGER, "/spec/replicas"),
        "{minimum: 1, maximum: 7}",
        "Number of managers. One acts, the other managers take over. A drain leaves all but one; from 3 on they are spread over zones.",
    ),
    (
        "manager.resources",
        Field(MANAGER, "/spec/template/spec/containers/manager/resources"),
        ANY,
        "Resources of a manager. The memory limit suffices for 300,000 pods.",
    ),
    (
        "manager.priorityClassName",
        Field(MANAGER, "/spec/template/spec/priorityClassName"),
        ANY,
        "Priority class of managers. It must protect them from preemption.",
    ),
    (
        "manager.nodeSelector",
        Yaml("{}"),
        ANY,
        "Node labels for managers.",
    ),
    (
        "manager.tolerations",
        Yaml("[]"),
        "{items: {type: object}}",
        "Tolerations of managers.",
    ),
    (
        "config",
        Configuration,
        ANY,
        "Configuration of the manager: all keys of docs/reference/configuration.md. A change replaces the managers' pods.",
    ),
    (
        "agents.enabled",
        Yaml("true"),
        ANY,
        "Whether node agents run. Without them a failed gang is recreated on its nodes instead of restarted in place.",
    ),
    (
        "agents.namespace",
        Field("components/agent/namespace.yaml", "/metadata/name"),
        NAME,
        "Namespace of the agents, which the chart creates unless it is the namespace of the release.",
    ),
    (
        "agents.runtimeEndpoint",
        Yaml("unix:///run/containerd/containerd.sock"),
        "{pattern: '^unix:///.+/.+'}",
        "Socket of the container runtime. k3s: `unix:///run/k3s/containerd/containerd.sock`; CRI-O: `unix:///run/crio/crio.sock`.",
    ),
    (
        "agents.kubeletFolder",
        Yaml("/var/lib/kubelet"),
        FOLDER,
        "Flag `--root-dir` of the kubelets.",
    ),
    (
        "agents.resources",
        Field(AGENT, "/spec/template/spec/containers/agent/resources"),
        ANY,
        "Resources of an agent.",
    ),
    (
        "agents.priorityClassName",
        Field(AGENT, "/spec/template/spec/priorityClassName"),
        ANY,
        "Priority class of agents.",
    ),
    (
        "agents.nodeSelector",
        Yaml("{}"),
        ANY,
        "Node labels for agents.",
    ),
    (
        "agents.tolerations",
        Field(AGENT, "/spec/template/spec/tolerations"),
        "{items: {type: object}}",
        "Tolerations of agents.",
    ),
    (
        "agents.securityContext",
        Field(
            AGENT,
            "/spec/template/spec/containers/agent/securityContext",
        ),
        ANY,
        "Security context of an agent. Enforcing SELinux also needs `seLinuxOptions: {type: spc_t}`.",
    ),
    (
        "crds.enabled",
        Yaml("true"),
        ANY,
        "Whether the chart contains the definitions.",
    ),
    (
        "crds.keep",
        Yaml("true"),
        ANY,
        "Whether `helm uninstall` keeps the definitions, and with them all workloads.",
    ),
    (
        "networkPolicy.enabled",
        Yaml("false"),
        ANY,
        "Whether only Prometheus in namespaces with the label `metrics: enabled`, and probes, may reach managers and agents.",
    ),
    (
        "monitoring.dashboards.enabled",
        Yaml("true"),
        ANY,
        "Dashboards for Grafana, as a ConfigMap that its sidecar finds.",
    ),
    (
        "monitoring.prometheus.enabled",
        Yaml("false"),
        ANY,
        "ServiceMonitor, PodMonitor and PrometheusRule. They need Prometheus' operator.",
    ),
    (
        "monitoring.prometheus.labels",
        Yaml("{}"),
        ANY,
        "More labels of these, such as `{release: prometheus}`, by which Prometheus' operator selects them.",
    ),
];

/// One value of the chart.
pub(super) struct Setting {
    path: &'static str,
    default: Value,
    schema: Value,
    meaning: &'static str,
}

pub(super) fn settings(manifests: &Manifests, images: &Images) -> Result<Vec<Setting>> {
    let setting = |(path, default, schema, meaning): &Row| {
        let default = match default {
            Field(file, field) => at(manifests.object(file)?, field)?.clone(),
            Yaml(text) => serde_saphyr::from_str(text)?,
            Image => part_of_image(path, images)?,
            Configuration => configuration(manifests)?,
        };
        let mut schema: Value = serde_saphyr::from_str(schema)?;
        if *path == "config" {
            schema = closed(&serde_json::to_value(Config::default())?);
        }
        schema["type"] = json!(kind(&default));
        Ok(Setting {
            path,
            default,
            schema,
            meaning,
        })
    };
    ROWS.iter().map(setting).collect()
}

/// Names of images end in a tag or in a digest.
fn part_of_image(path: &str, images: &Images) -> Result<Value> {
    let (image, program) = match path {
        "images.digests.agent" => (&images.agent, "agent"),
        "images.digests.run" => (&images.supervisor, "run"),
        _ => (&images.manager, "manager"),
    };
    let parts = image.split_once(&format!("lockstep-{program}"));
    let (prefix, version) = parts.with_context(|| image.clone())?;
    Ok(json!(match path {
        "images.prefix" => prefix,
        "images.tag" => version.strip_prefix(':').unwrap_or(TAG),
        _ => version.strip_prefix('@').unwrap_or_default(),
    }))
}

fn configuration(manifests: &Manifests) -> Result<Value> {
    let mut config = manifests.configuration()?;
    let sections = config.as_object_mut().context("a configuration")?;
    sections.remove("supervisor");
    let agents = sections.get_mut("agents").and_then(Value::as_object_mut);
    agents.context("section agents")?.remove("namespace");
    Ok(config)
}

/// Schema of the configuration by its defaults: no key besides these.
fn closed(default: &Value) -> Value {
    let mut schema = json!({"type": kind(default)});
    let keys = default.as_object().filter(|keys| !keys.is_empty());
    if let Some(keys) = keys {
        let properties = keys.iter().map(|(key, value)| (key.clone(), closed(value)));
        schema["properties"] = properties.collect::<serde_json::Map<_, _>>().into();
        schema["additionalProperties"] = json!(false);
    }
    schema
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `values.yaml`, with the meaning above each value.
pub(super) fn values(settings: &[Setting]) -> Result<String> {
    let mut out = String::new();
    let mut open: Vec<&str> = Vec::new();
    for setting in settings {
        let mut keys: Vec<&str> = setting.path.split('.').collect();
        let last = keys.pop().context("a key")?;
        let common = open.iter().zip(&keys).take_while(|(a, b)| a == b).count();
        for (depth, key) in keys.iter().enumerate().skip(common) {
            let _ = writeln!(out, "{:1$}{key}:", "", 2 * depth);
        }
        let indent = 2 * keys.len();
        for line in wrapped(setting.meaning, 120 - indent) {
            let _ = writeln!(out, "{:indent$}# {line}", "");
        }
        let field = BTreeMap::from([(last, &setting.default)]);
        for line in serde_saphyr::to_string(&field)?.lines() {
            let _ = writeln!(out, "{:indent$}{line}", "");
        }
        open = keys;
    }
    Ok(out)
}

/// `values.schema.json`.
pub(super) fn schema(settings: &[Setting]) -> Result<String> {
    let mut root = json!({"type": "object", "properties": {}, "additionalProperties": false});
    for setting in settings {
        let mut object = &mut root;
        for key in setting.path.split('.') {
            let properties = object["properties"].as_object_mut();
            let properties = properties.context(setting.path)?;
            object = properties.entry(key).or_insert_with(
                || json!({"type": "object", "properties": {}, "additionalProperties": false}),
            );
        }
        *object = setting.schema.clone();
        object["description"] = json!(setting.meaning);
    }
    // Helm adds it to the values of a chart that is a dependency of another chart.
    root["properties"]["global"] = json!({"type": "object"});
    root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    Ok(format!("{}\n", serde_json::to_string_pretty(&root)?))
}

/// The table of the README.
pub(super) fn table(settings: &[Setting]) -> String {
    let mut out = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Setting {
        path,
        default,
        meaning,
        ..
    } in settings
    {
        let default = match default {
            Value::String(text) if text.is_empty() => "`\"\"`".to_owned(),
            Value::String(text) => format!("`{text}`"),
            // Long defaults are in values.yaml.
            Value::Object(fields) if !fields.is_empty() => "as in `config/`".to_owned(),
            other => format!("`{other}`"),
        };
        let _ = writeln!(out, "| `{path}` | {default} | {meaning} |");
    }
    out
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() + 3 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
