//! The Helm chart: its objects are those of the overlays, and Helm installs, upgrades and removes them
//! around running gangs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::helm::{RELEASE, chart};
use lockstep_cluster::install::{Method, overlay};
use lockstep_cluster::manifests::parse;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::{cluster, installed, patient};
use serde_json::{Value, json};

use crate::components::taken;
use crate::console::blocks;
use crate::elsewhere::{doctor_finds, flow_control_is_for, shape, story};
use crate::removal::nothing_is_left;
use crate::same::{Meant, Names, SHIPPED, not_as_meant, shipped};

const MEANT: [Meant; 2] = [
    (
        "Namespace MANAGER",
        "",
        "Helm creates the namespace of the release",
    ),
    (
        "Deployment lockstep-manager",
        "/spec/template/metadata/annotations/checksum/config",
        "replaces the hash in the name of the ConfigMap",
    ),
];

/// Labels that every object of a chart has.
const LABELS: [&str; 5] = [
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
];

/// Values, overlay and components that have the same objects.
const SAME: [(&[&str], &str, &[&str]); 8] = [
    (&[], "full", &[]),
    (
        &[
            "agents.enabled=false",
            "monitoring.dashboards.enabled=false",
        ],
        "default",
        &[],
    ),
    (
        &["agents.runtimeEndpoint=unix:///run/crio/crio.sock"],
        "full",
        &["crio"],
    ),
    (
        &["agents.runtimeEndpoint=unix:///run/k3s/containerd/containerd.sock"],
        "full",
        &["k3s"],
    ),
    (&["manager.replicas=3"], "full", &["ha-3"]),
    (
        &["networkPolicy.enabled=true"],
        "full",
        &["agent-network-policy", "network-policy"],
    ),
    (
        &[
            "agents.enabled=false",
            "monitoring.dashboards.enabled=false",
            "networkPolicy.enabled=true",
        ],
        "default",
        &["network-policy"],
    ),
    (
        &["monitoring.prometheus.enabled=true"],
        "full",
        &["prometheus"],
    ),
];

/// Values of the configuration with which the chart has the objects of a component, too.
const MODES: [(&str, &str); 3] = [
    (
        "config.autoscaler.mode=ProvisioningRequest",
        "provisioning-requests",
    ),
    ("config.autoscaler.mode=Pods", "signal-pods"),
    ("config.kueue.enabled=true", "kueue"),
];
const CONFIGURED: Meant = (
    "ConfigMap lockstep-manager-config",
    "/data/config.yaml",
    "kustomize leaves the configuration to its user",
);

/// Values that set each value of the chart.
fn values_for_tests() -> PathBuf {
    repository().join("tests/helm/values.yaml")
}

/// What `helm template` prints for these values.
async fn rendered(cluster: &Cluster, namespace: &str, values: &[&str]) -> Result<String> {
    let chart = chart().display().to_string();
    let mut args = vec!["template", RELEASE, &chart, "-n", namespace];
    args.extend(values.iter().flat_map(|value| ["--set", *value]));
    cluster.helm(&args).await
}

/// The objects without the labels of a chart.
fn objects(rendered: &str) -> Result<Vec<Value>> {
    let documents = rendered.split("\n---\n").map(parse);
    let mut objects: Vec<Value> = documents.collect::<Result<_>>()?;
    objects.retain(|object| !object.is_null());
    for object in &mut objects {
        let labels = object["metadata"]["labels"].as_object_mut();
        let labels = labels.context("labels")?;
        for label in LABELS {
            labels.remove(label).context(label)?;
        }
    }
    Ok(objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_has_the_objects_of_the_overlay_with_the_same_components() -> Result<()> {
    let cluster = cluster().await?;
    for (values, base, components) in SAME {
        let folder = if components.is_empty() {
            repository().join("config/overlays").join(base)
        } else {
            overlay(&repository(), cluster.folder(), base, components)?
        };
        let expected = shipped(cluster, &folder, &SHIPPED).await?;
        let [(manager, _), (agents, _)] = SHIPPED;
        for [manager, agents] in [[manager, agents], ["gangs", "gang-agents"]] {
            let agents_in = format!("agents.namespace={agents}");
            let values = [values, &[&*agents_in, "crds.keep=false"]].concat();
            let found = objects(&rendered(cluster, manager, &values).await?)?;
            let names = Names {
                prefix: "",
                namespaces: &[(manager, "MANAGER"), (agents, "AGENTS")],
            };
            let wrong = not_as_meant(&expected, &names.objects(found)?, &MEANT);
            ensure!(wrong.is_empty(), "{values:?}: {wrong:#?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_has_the_objects_of_a_component_with_its_mode_in_the_configuration() -> Result<()>
{
    let cluster = cluster().await?;
    let names = Names {
        prefix: "",
        namespaces: &SHIPPED,
    };
    let meant = [MEANT[0], MEANT[1], CONFIGURED];
    for (value, component) in MODES {
        let folder = overlay(&repository(), cluster.folder(), "full", &[component])?;
        let expected = shipped(cluster, &folder, &SHIPPED).await?;
        let values = [value, "crds.keep=false"];
        let found = objects(&rendered(cluster, SHIPPED[0].0, &values).await?)?;
        let wrong = not_as_meant(&expected, &names.objects(found)?, &meant);
        ensure!(wrong.is_empty(), "{value}: {wrong:#?}");
    }
    let other = [
        "config.autoscaler.mode=Pods",
        "config.autoscaler.namespace=s",
    ];
    let text = rendered(cluster, "gangs", &other).await?;
    ensure!(text.contains("\n  name: \"s\"\n"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_lints_the_chart_and_the_api_server_accepts_its_objects_strictly() -> Result<()> {
    let cluster = cluster().await?;
    let path = chart().display().to_string();
    let values = values_for_tests();
    let values = values.display().to_string();
    for arguments in [["--set", "global.any=1"], ["-f", &values]] {
        cluster
            .helm(&[&["lint", "--strict", &path], &arguments[..]].concat())
            .await?;
    }
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    let [(manager, _), _] = SHIPPED;
    let existing = "monitoring.dashboards.namespace=default,\
        agents.namespace=lockstep-agent";
    let arguments = [
        "template",
        RELEASE,
        &path,
        "-n",
        manager,
        "-f",
        &values,
        "--set",
        existing,
        "--set",
        // The API server has no definitions of Prometheus' operator.
        "monitoring.prometheus.enabled=false",
    ];
    let text = cluster.helm(&arguments).await?;
    let file = cluster.folder().join("chart.yaml");
    std::fs::write(&file, &text)?;
    let accepted = taken(cluster, "-f", &file).await?;
    for line in [
        "daemonset.apps/lockstep-agent configured (server dry run)",
        "networkpolicy.networking.k8s.io/lockstep-manager created (server dry run)",
    ] {
        ensure!(accepted.contains(line), "{line}: {accepted}");
    }
    std::fs::write(&file, text.replace("nodeSelector:", "nodeSelectors:"))?;
    let refused = taken(cluster, "-f", &file).await.err();
    let refused = format!("{:#}", refused.context("an unknown field is accepted")?);
    ensure!(refused.contains("unknown field"), "{refused}");
    Ok(())
}

/// Values that remove an object or field, and a text of it.
const SWITCHES: [(&str, &str); 10] = [
    (
        "manager.topologySpreadConstraints",
        "topologyKey: kubernetes.io/hostname",
    ),
    (
        "manager.podDisruptionBudget.enabled",
        "kind: PodDisruptionBudget",
    ),
    ("manager.podSecurityContext.runAsUser", "runAsUser: 65532"),
    ("manager.podSecurityContext.runAsGroup", "runAsGroup: 65532"),
    ("flowControl.enabled", "kind: FlowSchema"),
    ("resourceQuotas.enabled", "kind: ResourceQuota"),
    ("crds.keep", "helm.sh/resource-policy"),
    (
        "monitoring.dashboards.labels.grafana_dashboard",
        "grafana_dashboard:",
    ),
    (
        "monitoring.prometheus.alerts.LockstepNoLeader.enabled",
        "alert: LockstepNoLeader",
    ),
    (
        "monitoring.prometheus.alerts.LockstepRestartLoop.threshold",
        "> 5 or",
    ),
];

/// What objects contain for each value: texts, and other values with their key.
fn contents(value: &Value, path: &str, out: &mut Vec<String>) {
    let key = path.rsplit('.').next().unwrap_or_default();
    // Digests replace the tag.
    let is_shown = key != "enabled" && path != "images.tag";
    if !is_shown || SWITCHES.iter().any(|(switch, _)| *switch == path) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                contents(value, path.trim_start_matches('.'), out);
            }
        }
        Value::Array(values) => {
            for value in values {
                contents(value, path, out);
            }
        }
        Value::String(text) => out.push(text.clone()),
        other => out.push(format!("{key}: {other}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_contain_each_value_of_the_chart() -> Result<()> {
    let cluster = cluster().await?;
    let file = values_for_tests();
    let values: Value = parse(&std::fs::read_to_string(&file)?)?;
    let (file, chart) = (file.display().to_string(), chart().display().to_string());
    let args = ["template", RELEASE, &chart, "-f", &file];
    let text = cluster.helm(&args).await?;
    let mut expected = Vec::new();
    contents(&values, "", &mut expected);
    ensure!(expected.len() > 60, "{expected:?}");
    expected.retain(|content| !text.contains(content));
    ensure!(expected.is_empty(), "{expected:?}");
    let prometheus = "monitoring.prometheus.enabled=true";
    let by_default = rendered(cluster, "gangs", &[prometheus]).await?;
    for (value, content) in SWITCHES {
        ensure!(by_default.contains(content), "{value}: no {content}");
        ensure!(!text.contains(content), "{value}: {content}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_refuses_values_outside_the_schema_with_their_path() -> Result<()> {
    let cluster = cluster().await?;
    for (value, expected) in [
        (
            "agents.enable=false",
            "at '/agents': additional properties 'enable' not allowed",
        ),
        (
            "config.scheduler.preemtion.enabled=false",
            "at '/config/scheduler': additional properties 'preemtion' not allowed",
        ),
        (
            "manager.replicas=0",
            "at '/manager/replicas': minimum: got 0, want 1",
        ),
        ("images.digests.run=v1", "at '/images/digests/run'"),
        (
            "agents.runtimeEndpoint=/run/crio/crio.sock",
            "at '/agents/runtimeEndpoint'",
        ),
        ("agents.namespace=A", "at '/agents/namespace'"),
        (
            "monitoring.prometheus.alerts.LockstepNoLeader.threshold=2",
            "at '/monitoring/prometheus/alerts/LockstepNoLeader': additional properties 'threshold' not allowed",
        ),
    ] {
        let refused = rendered(cluster, "gangs", &[value]).await.err();
        let refused = format!("{:#}", refused.context(value)?);
        ensure!(refused.contains(expected), "{expected}: {refused}");
    }
    Ok(())
}

/// A copy of the chart with a later version, whose definitions have another label.
fn later(folder: &Path) -> Result<PathBuf> {
    let to = folder.join("later");
    copy(&chart(), &to)?;
    for (file, from, into) in [
        ("Chart.yaml", "\nversion: \"0.1.0\"", "\nversion: \"0.1.1\""),
        (
            "files/crds/nodeagents.training.lockstep.dev.yaml",
            "  labels:\n",
            "  labels:\n    later: \"true\"\n",
        ),
    ] {
        let file = to.join(file);
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{}", file.display());
        std::fs::write(&file, text.replacen(from, into, 1))?;
    }
    Ok(to)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// A running gang keeps its pods, and restarts in place after this failure.
async fn restarts(t: &Scenario<'_>, before: &[String], times: i64) -> Result<()> {
    let pods = t.running("urgent").await?;
    ensure!(uids(&pods) == before, "{before:?} {:?}", uids(&pods));
    t.exit(pods.first().context("a pod")?, 3).await?;
    t.restarted("urgent", times).await?;
    let after = t.running("urgent").await?;
    ensure!(uids(&after) == before, "{before:?} {:?}", uids(&after));
    Ok(())
}

/// Definitions of the later chart.
async fn definitions_of_later(cluster: &Cluster) -> Result<String> {
    let args = ["get", "crd", "-l", "later=true", "-o", "name"];
    cluster.kubectl(&args).await
}

/// Runs the lines of a page for an installation in another namespace.
async fn play(cluster: &Cluster, namespace: &str, line: &str) -> Result<()> {
    let line = line.replace("lockstep-system", namespace);
    let args: Vec<&str> = line.split(' ').skip(1).collect();
    let done = if line.starts_with("helm ") {
        cluster.helm(&args).await
    } else {
        cluster.kubectl(&args).await
    };
    done.with_context(|| line.clone()).map(drop)
}

/// The lines of the page that remove an installation by Helm.
fn removal() -> Result<Vec<String>> {
    let blocks = blocks("docs/install/helm.md", "sh")?;
    let block = blocks.iter().find(|b| b.contains("helm uninstall"));
    let lines = block.context("a block")?.lines().map(str::to_owned);
    Ok(lines.collect())
}

#[test]
fn the_readme_of_the_chart_has_the_documented_lines_of_removal() -> Result<()> {
    let readme = blocks("charts/lockstep/README.md", "sh")?;
    let block = readme.iter().find(|b| b.contains("helm uninstall"));
    let lines: Vec<String> = block.context("a block")?.lines().map(Into::into).collect();
    ensure!(lines == removal()?, "{lines:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_run_through_install_upgrade_rollback_and_uninstall_by_helm() -> Result<()> {
    let (namespace, agents) = ("gangs", "gang-agents");
    let method = Method::Chart {
        manager: namespace.into(),
        agents: agents.into(),
    };
    let cluster = installed("chart", patient(), method).await?;
    if !cluster.is_ours("an installation of our own") {
        return Ok(());
    }
    let accounts = [
        (namespace, "lockstep-manager".to_owned()),
        (agents, "lockstep-agent".to_owned()),
    ];
    flow_control_is_for(&cluster, &accounts).await?;
    let manager = cluster.start_manager("installed").await?;
    scenario(&cluster, "chart", &shape(), async |t| {
        // Ends with the gang `urgent` on both nodes.
        story(t).await?;
        doctor_finds(t.cluster, "2 agents are ready").await?;
        let before = uids(&t.running("urgent").await?);

        let config = json!({"scheduler": {"preemption": {"enabled": false}}});
        let more = ["--set", "manager.resources.limits.memory=2Gi"];
        let later = later(t.cluster.folder())?;
        let notes = t.cluster.release("upgrade", &later, &config, &more).await?;
        let hint = format!("kubectl rollout status daemonset/lockstep-agent -n {agents}");
        ensure!(notes.contains(&hint), "{notes}");
        manager.process.terminate(PATIENCE).await?;
        let definitions = definitions_of_later(t.cluster).await?;
        ensure!(definitions.contains("nodeagents"), "{definitions}");
        let upgraded = t.cluster.start_manager("upgraded").await?;
        restarts(t, &before, 1).await?;

        t.cluster
            .helm(&["rollback", RELEASE, "1", "-n", namespace])
            .await?;
        upgraded.process.terminate(PATIENCE).await?;
        let definitions = definitions_of_later(t.cluster).await?;
        ensure!(definitions.is_empty(), "{definitions}");
        let rolled_back = t.cluster.start_manager("rolled-back").await?;
        restarts(t, &before, 2).await?;

        t.cluster
            .helm(&["uninstall", RELEASE, "-n", namespace])
            .await?;
        rolled_back.process.terminate(PATIENCE).await?;
        let after = uids(&t.running("urgent").await?);
        ensure!(after == before, "{before:?} {after:?}");

        // The definitions of the first release are adopted.
        eventually(
            "the namespace of the agents to be gone",
            PATIENCE,
            async || {
                let found = [
                    "get",
                    "namespace",
                    agents,
                    "--ignore-not-found",
                    "-o",
                    "name",
                ];
                let found = t.cluster.kubectl(&found).await?;
                ensure!(found.is_empty(), "{found}");
                Ok(())
            },
        )
        .await?;
        t.cluster
            .release("install", &chart(), &json!({}), &[])
            .await?;
        let mut again = Some(t.cluster.start_manager("again").await?);
        for line in removal()? {
            if line.starts_with("kubectl delete crd") {
                let manager = again.take().context("the manager")?;
                manager.process.terminate(PATIENCE).await?;
            }
            play(t.cluster, namespace, &line).await?;
        }
        // The story has made an account that is a stranger here.
        let strangers = [
            "Namespace /lockstep-system",
            "ServiceAccount lockstep-system/",
        ];
        nothing_is_left(t.cluster, &strangers).await
    })
    .await
}
