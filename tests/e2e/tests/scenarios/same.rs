//! Installations under other names or by OLM have the objects of `config/overlays/full` with equal
//! content, apart from the differences listed here with their reasons. Under other names, this also
//! applies to all further components, without differences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::install::{overlay, renamed_layers, renamed_overlay};
use lockstep_cluster::manifests::parse;
use lockstep_cluster::{Cluster, olm};
use lockstep_e2e::cluster;
use lockstep_manager::components::{AgentSettings, daemon_set, flow_control, policies};
use serde_json::{Value, json};

use crate::console::blocks;
use crate::elsewhere::{BY_OLM, OVERLAYS};

/// An intended difference: the object, the place in it (empty: the object is in only one of the
/// installations), and the reason.
pub type Meant = (&'static str, &'static str, &'static str);

/// Components that are in no overlay and have separate objects.
const MORE: [&str; 3] = ["kueue", "prometheus", "provisioning-requests"];

const OLM: &[Meant] = &[
    (
        "Namespace HERE",
        "",
        "OLM installs into a namespace that is there",
    ),
    (
        "ResourceQuota lockstep-agent",
        "",
        "no kind that a bundle may hold",
    ),
    (
        "ResourceQuota lockstep-manager",
        "",
        "no kind that a bundle may hold",
    ),
    (
        "ConfigMap lockstep-manager-config",
        "",
        "the administrator's, or each upgrade would put it back",
    ),
    (
        "ConfigMap lockstep-dashboards",
        "",
        "not everybody who uses OLM has Grafana",
    ),
    (
        "Deployment lockstep-manager",
        "/spec/template/spec/containers/0/args",
        "--defaults has what only the bundle knows",
    ),
    (
        "Deployment lockstep-manager",
        "/spec/template/spec/volumes/0/configMap/optional",
        "the administrator's ConfigMap may not be there",
    ),
    (
        "Deployment lockstep-components",
        "",
        "applies what a bundle may not hold",
    ),
    (
        "ServiceAccount lockstep-components",
        "",
        "the account of that deployment",
    ),
    (
        "rights of lockstep-components, ClusterRole",
        "",
        "the rights of that deployment",
    ),
    (
        "rights of lockstep-components, Role",
        "",
        "the rights of that deployment",
    ),
    (
        "DaemonSet lockstep-agent",
        "/metadata/ownerReferences",
        "goes with that deployment",
    ),
];

/// Cluster-wide kinds that get a namespace in an overlay with `namespace`, because kustomize does
/// not know their scope. kubectl ignores the namespace.
const CLUSTER_WIDE: [&str; 4] = [
    "FlowSchema",
    "PriorityLevelConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Namespaces of the shipped overlays and their placeholders.
pub const SHIPPED: [(&str, &str); 2] =
    [("lockstep-system", "MANAGER"), ("lockstep-agent", "AGENTS")];

/// Objects by kind and name.
pub type Objects = BTreeMap<String, Value>;

/// Names of an installation.
pub struct Names<'a> {
    pub prefix: &'a str,
    /// Namespaces and their placeholders.
    pub namespaces: &'a [(&'a str, &'a str)],
}

impl Names<'_> {
    /// Replaces namespaces by placeholders, and removes prefix and hash of names.
    fn normalise(&self, value: &mut Value, key: &str) {
        match value {
            Value::Object(fields) => {
                let is_namespace = fields.get("kind").is_some_and(|k| k == "Namespace");
                if is_namespace && let Some(name) = fields["metadata"].get_mut("name") {
                    self.normalise(name, "namespace");
                }
                for (key, value) in fields {
                    self.normalise(value, key);
                }
            }
            Value::Array(values) => {
                for value in values {
                    self.normalise(value, key);
                }
            }
            Value::String(text) => *text = self.text(text, key),
            // kustomize writes 1.0 as 1.
            Value::Number(number) => *value = json!(number.as_f64()),
            _ => {}
        }
    }

    fn text(&self, text: &str, key: &str) -> String {
        let mut known = self.namespaces.iter();
        if ["namespace", "matchNames"].contains(&key)
            && let Some((_, stands)) = known.find(|(name, _)| *name == text)
        {
            return (*stands).to_owned();
        }
        // Comments of the configuration are ignored, and the namespace in it is replaced.
        if key == "config.yaml"
            && let Ok(mut config) = parse(text)
        {
            self.normalise(&mut config, "");
            return config.to_string();
        }
        // kustomize and the manager write different line breaks of a folded text.
        if key == "expression" {
            return text.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        let prefixed = text.strip_prefix(self.prefix);
        let plain = prefixed
            .filter(|t| t.starts_with("lockstep"))
            .unwrap_or(text);
        for generated in ["lockstep-manager-config", "lockstep-dashboards"] {
            if plain.starts_with(generated) {
                return generated.to_owned();
            }
        }
        plain.to_owned()
    }

    /// Objects by kind and name. Roles and bindings are replaced by the rights of each account,
    /// because an installer can name and divide roles.
    pub fn objects(&self, all: Vec<Value>) -> Result<Objects> {
        let mut objects = Objects::new();
        for mut object in all {
            self.normalise(&mut object, "");
            let [kind, name] = [&object["kind"], &object["metadata"]["name"]]
                .map(|v| v.as_str().unwrap_or_default().to_owned());
            if CLUSTER_WIDE.contains(&kind.as_str())
                && let Some(metadata) = object["metadata"].as_object_mut()
            {
                metadata.remove("namespace");
            }
            if kind == "ServiceAccount" {
                // Labels depend on the installer.
                object["metadata"] = json!({"namespace": object["metadata"]["namespace"]});
            }
            let double = objects.insert(format!("{kind} {name}"), object);
            ensure!(
                double.is_none() || kind == "Namespace",
                "{kind} {name} twice"
            );
        }
        rights(&mut objects)?;
        Ok(objects)
    }
}

fn rights(objects: &mut Objects) -> Result<()> {
    let bindings = objects.extract_if(.., |key, _| key.contains("RoleBinding "));
    let bindings: Vec<(String, Value)> = bindings.collect();
    let mut bound = BTreeSet::new();
    for (key, binding) in bindings {
        let of = &binding["roleRef"];
        let [kind, name] = ["kind", "name"].map(|f| of[f].as_str().unwrap_or_default());
        let role = format!("{kind} {name}");
        let rules = &objects.get(&role).context(role.clone())?["rules"];
        let rules = rules.as_array().context(role.clone())?.clone();
        bound.insert(role);
        for subject in binding["subjects"].as_array().context(key)? {
            let account = subject["name"].as_str().context("an account")?;
            let place = &subject["namespace"];
            let may = objects.entry(format!("rights of {account}, {kind}"));
            let may = may.or_insert_with(|| json!({"in": place, "rules": []}));
            ensure!(may["in"] == *place, "{account} is in {place} and {may}");
            let all = may["rules"].as_array_mut().context("rules")?;
            all.extend(rules.iter().cloned());
        }
    }
    objects.retain(|key, _| !bound.contains(key));
    Ok(())
}

/// JSON pointers of the differences between two values.
fn differences(one: &Value, other: &Value, path: &str, out: &mut BTreeSet<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differences(&one[key], &other[key], &format!("{path}/{key}"), out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (one, other)) in a.iter().zip(b).enumerate() {
                differences(one, other, &format!("{path}/{at}"), out);
            }
        }
        _ if one == other => {}
        _ => {
            out.insert(path.to_owned());
        }
    }
}

/// Unintended differences, and intended differences that are absent.
pub fn not_as_meant(full: &Objects, other: &Objects, meant: &[Meant]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for key in full.keys().chain(other.keys()) {
        let mut paths = BTreeSet::new();
        let of = |objects: &Objects| objects.get(key).cloned().unwrap_or_default();
        differences(&of(full), &of(other), "", &mut paths);
        found.extend(paths.into_iter().map(|path| format!("{key}{path}")));
    }
    let expected = meant
        .iter()
        .map(|(object, path, _)| format!("{object}{path}"));
    let expected: BTreeSet<String> = expected.collect();
    let more = found.difference(&expected);
    let more = more.map(|at| format!("{at} differs and is not meant to"));
    let fewer = expected.difference(&found);
    let fewer = fewer.map(|at| format!("{at} is meant to differ and does not"));
    more.chain(fewer).collect()
}

/// Output of kustomize for an overlay.
async fn built(cluster: &Cluster, overlay: &Path) -> Result<Vec<Value>> {
    let overlay = overlay.display().to_string();
    let made = cluster.kubectl(&["kustomize", &overlay]).await?;
    made.trim_end().split("\n---\n").map(parse).collect()
}

/// The objects of an overlay with the shipped names.
pub async fn shipped(
    cluster: &Cluster,
    overlay: &Path,
    namespaces: &[(&str, &str)],
) -> Result<Objects> {
    let prefix = "";
    let names = Names { prefix, namespaces };
    let objects = names.objects(built(cluster, overlay).await?)?;
    ensure!(objects.len() > 30, "{:?}", objects.keys());
    Ok(objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_overlay_has_the_objects_of_the_shipped_one_but_for_names() -> Result<()> {
    let cluster = cluster().await?;
    let with_more = overlay(&repository(), cluster.folder(), "full", &MORE)?;
    let full = shipped(cluster, &with_more, &SHIPPED).await?;
    for names in OVERLAYS {
        let [prefix, manager, agents] = names;
        let folder = cluster.folder().join(format!("same-{manager}"));
        let overlay = renamed_overlay(&repository(), &folder, names, &MORE)?;
        let names = Names {
            prefix,
            namespaces: &[(manager, "MANAGER"), (agents, "AGENTS")],
        };
        let renamed = names.objects(built(cluster, &overlay).await?)?;
        let wrong = not_as_meant(&full, &renamed, &[]);
        ensure!(wrong.is_empty(), "{manager}: {wrong:#?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_by_olm_has_the_objects_of_the_shipped_one_but_for_what_olm_is()
-> Result<()> {
    // Manager and agents share a namespace.
    let here = SHIPPED.map(|(namespace, _)| (namespace, "HERE"));
    let overlay = repository().join("config/overlays/full");
    let full = shipped(cluster().await?, &overlay, &here).await?;
    let agent = &full["DaemonSet lockstep-agent"]["spec"]["template"]["spec"]["containers"][0];
    let runtime = agent["args"][0].as_str().context("the socket")?;
    let settings = AgentSettings {
        image: agent["image"].as_str().context("an image")?.to_owned(),
        runtime: runtime.trim_start_matches("--runtime-endpoint=").parse()?,
    };
    for namespace in BY_OLM {
        let mut all = olm::objects(&olm::bundle(), namespace)?;
        let owner = json!({"metadata": {"name": "lockstep-components", "uid": "u"}});
        let owner: Deployment = serde_json::from_value(owner)?;
        let mut applied = policies()?;
        applied.extend(flow_control(namespace)?);
        applied.push(daemon_set(&settings, namespace, &owner)?);
        for object in applied {
            all.push(serde_json::to_value(object)?);
        }
        let names = Names {
            prefix: "",
            namespaces: &[(namespace, "HERE")],
        };
        let wrong = not_as_meant(&full, &names.objects(all)?, OLM);
        ensure!(wrong.is_empty(), "{namespace}: {wrong:#?}");
    }
    Ok(())
}

/// The objects of the bundle, for comparison with a mistake.
fn bundled() -> Result<Objects> {
    let names = Names {
        prefix: "",
        namespaces: &[],
    };
    names.objects(olm::objects(&olm::bundle(), BY_OLM[0])?)
}

#[test]
fn one_argument_that_changed_is_found() -> Result<()> {
    let full = bundled()?;
    let mut other = full.clone();
    let manager = other.get_mut("Deployment lockstep-manager");
    let manager = manager.context("the manager")?;
    let first = manager.pointer_mut("/spec/template/spec/containers/0/args/0");
    *first.context("an argument")? = json!("--elsewhere");
    let wrong = not_as_meant(&full, &other, &[]);
    let at = "Deployment lockstep-manager/spec/template/spec/containers/0/args/0";
    ensure!(
        wrong == [format!("{at} differs and is not meant to")],
        "{wrong:?}"
    );
    Ok(())
}

#[test]
fn an_object_that_one_of_both_lacks_is_found() -> Result<()> {
    let full = bundled()?;
    let mut other = full.clone();
    other.remove("Service lockstep-metrics");
    for (one, other) in [(&full, &other), (&other, &full)] {
        let wrong = not_as_meant(one, other, &[]);
        let expected = "Service lockstep-metrics differs and is not meant to";
        ensure!(wrong == [expected], "{wrong:?}");
    }
    Ok(())
}

#[test]
fn a_difference_that_is_meant_and_gone_is_found() -> Result<()> {
    let full = bundled()?;
    let meant = [("Deployment lockstep-manager", "/spec/replicas", "once")];
    let wrong = not_as_meant(&full, &full, &meant);
    let expected = "Deployment lockstep-manager/spec/replicas is meant to differ and does not";
    ensure!(wrong == [expected], "{wrong:?}");
    Ok(())
}

#[test]
fn a_pod_monitor_that_looks_for_agents_where_none_are_is_found() -> Result<()> {
    let file = repository().join("config/components/prometheus/pod_monitor.yaml");
    let monitor: Value = parse(&std::fs::read_to_string(file)?)?;
    let [prefix, manager, agents] = OVERLAYS[0];
    let renamed = |looks_in: &str| {
        let mut monitor = monitor.clone();
        monitor["metadata"]["namespace"] = json!(manager);
        monitor["metadata"]["name"] = json!(format!("{prefix}lockstep-agent"));
        monitor["spec"]["namespaceSelector"]["matchNames"] = json!([looks_in]);
        let namespaces = &[(manager, "MANAGER"), (agents, "AGENTS")];
        Names { prefix, namespaces }.objects(vec![monitor])
    };
    let (prefix, namespaces) = ("", &SHIPPED);
    let shipped = Names { prefix, namespaces }.objects(vec![monitor.clone()])?;
    let right = not_as_meant(&shipped, &renamed(agents)?, &[]);
    ensure!(right.is_empty(), "{right:?}");
    let at = "PodMonitor lockstep-agent/spec/namespaceSelector/matchNames/0";
    for elsewhere in [manager, "lockstep-agent"] {
        let wrong = not_as_meant(&shipped, &renamed(elsewhere)?, &[]);
        ensure!(
            wrong == [format!("{at} differs and is not meant to")],
            "{wrong:?}"
        );
    }
    Ok(())
}

#[test]
fn a_configuration_that_looks_for_agents_where_none_are_is_found() -> Result<()> {
    let file = repository().join("config/manager/config.yaml");
    let shipped_text = std::fs::read_to_string(file)?;
    let map = |text: &str, namespace: &str| {
        json!({
            "kind": "ConfigMap",
            "metadata": {"name": "lockstep-manager-config", "namespace": namespace},
            "data": {"config.yaml": text},
        })
    };
    let [_, manager, agents] = OVERLAYS[0];
    let renamed = |looks_in: &str| {
        let line = format!("\n  namespace: {looks_in}\n");
        let text = shipped_text.replace("\n  namespace: lockstep-agent\n", &line);
        let namespaces = &[(manager, "MANAGER"), (agents, "AGENTS")];
        let prefix = "";
        Names { prefix, namespaces }.objects(vec![map(&text, manager)])
    };
    let (prefix, namespaces) = ("", &SHIPPED);
    let shipped = map(&shipped_text, "lockstep-system");
    let shipped = Names { prefix, namespaces }.objects(vec![shipped])?;
    let right = not_as_meant(&shipped, &renamed(agents)?, &[]);
    ensure!(right.is_empty(), "{right:?}");
    let wrong = not_as_meant(&shipped, &renamed("lockstep-agent")?, &[]);
    let at = "ConfigMap lockstep-manager-config/data/config.yaml";
    ensure!(
        wrong == [format!("{at} differs and is not meant to")],
        "{wrong:?}"
    );
    Ok(())
}

/// Layers of an overlay for which the page and the tests differ.
fn not_as_tried(blocks: &[String]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (part, text) in renamed_layers("../config", OVERLAYS[0], &[]) {
        let file = Path::new(part).join("kustomization.yaml");
        let file = file.display().to_string();
        let first = format!("# {file}\n");
        let block = blocks.iter().find(|b| b.starts_with(&first));
        let mut said: Value = parse(block.context(file.clone())?)?;
        let tried: Value = parse(&text)?;
        // Fields whose value kustomize knows.
        for key in ["apiVersion", "kind"] {
            said[key] = tried[key].clone();
        }
        if said != tried {
            wrong.push(file);
        }
    }
    Ok(wrong)
}

#[test]
fn the_layers_of_the_page_are_those_that_are_tried() -> Result<()> {
    let wrong = not_as_tried(&blocks("docs/install/kustomize.md", "yaml")?)?;
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

#[test]
fn a_layer_of_the_page_that_says_something_else_is_found() -> Result<()> {
    let page = blocks("docs/install/kustomize.md", "yaml")?;
    for (right, mistake, file) in [
        (
            "namespace: ops\n",
            "namespace: op\n",
            "manager/kustomization.yaml",
        ),
        (
            "name: lockstep-agent",
            "name: agent",
            "agents/kustomization.yaml",
        ),
        (
            "behavior: replace",
            "behavior: create",
            "manager/kustomization.yaml",
        ),
        ("matchNames.0", "matchNames", "kustomization.yaml"),
    ] {
        let page: Vec<String> = page.iter().map(|b| b.replace(right, mistake)).collect();
        let wrong = not_as_tried(&page)?;
        ensure!(wrong == [file], "{mistake}: {wrong:?}");
    }
    Ok(())
}
