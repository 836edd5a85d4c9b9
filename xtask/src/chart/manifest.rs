//! Manifests of `config/` and the fields of them that follow from values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::template::{Action, Template, at, when};
use crate::bundle::{GENERATED, read_all};

/// Folders below `config/` whose kustomizations name the manifests of the chart, with the condition
/// for their objects.
const FOLDERS: [(&str, &str); 8] = [
    ("manager", ""),
    ("rbac", ""),
    ("policies", ""),
    ("components/agent", ".Values.agents.enabled"),
    (
        "components/agent-network-policy",
        "and .Values.agents.enabled .Values.networkPolicy.enabled",
    ),
    (
        "components/dashboards",
        ".Values.monitoring.dashboards.enabled",
    ),
    ("components/network-policy", ".Values.networkPolicy.enabled"),
    (
        "components/prometheus",
        ".Values.monitoring.prometheus.enabled",
    ),
];
/// Helm creates the namespace of the release.
const NAMESPACE_OF_RELEASE: &str = "manager/namespace.yaml";
const NAMESPACE_OF_AGENTS: &str = "components/agent/namespace.yaml";
const CONFIGURATION: &str = "manager/config.yaml";
const MANAGER: &str = "manager/deployment.yaml";
/// The chart applies the patch from this number of managers on.
const HA: &str = "components/ha-3/deployment.yaml";

/// Namespaces in manifests, and what replaces them.
const NAMESPACES: [(&str, &str); 2] = [
    ("lockstep-system", "{{ .Release.Namespace | quote }}"),
    ("lockstep-agent", "{{ .Values.agents.namespace | quote }}"),
];

/// Fields that follow from values: file below `config/`, path of an object in it, paths of fields and
/// their texts.
type Texts = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const FOLDER_OF_SOCKET: &str =
    r#"{{ .Values.agents.runtimeEndpoint | trimPrefix "unix://" | dir }}"#;
const TEXTS: &[Texts] = &[
    (
        MANAGER,
        "/spec",
        &[
            ("replicas", "{{ .Values.manager.replicas }}"),
            (
                "template/metadata/annotations/checksum~1config",
                r#"{{ include "lockstep.config" . | sha256sum }}"#,
            ),
            (
                "template/spec/priorityClassName",
                "{{ .Values.manager.priorityClassName | quote }}",
            ),
            (
                "template/spec/containers/manager/image",
                r#"{{ include "lockstep.image" (list . "manager") }}"#,
            ),
        ],
    ),
    (
        "manager/disruption_budget.yaml",
        "/spec",
        &[("minAvailable", "{{ sub .Values.manager.replicas 1 }}")],
    ),
    (
        "manager/quota.yaml",
        "/spec/scopeSelector/matchExpressions/0/values",
        &[("0", "{{ .Values.manager.priorityClassName | quote }}")],
    ),
    (
        "components/agent/quota.yaml",
        "/spec/scopeSelector/matchExpressions/0/values",
        &[("0", "{{ .Values.agents.priorityClassName | quote }}")],
    ),
    (
        "components/agent/daemonset.yaml",
        "/spec/template/spec",
        &[
            (
                "priorityClassName",
                "{{ .Values.agents.priorityClassName | quote }}",
            ),
            (
                "containers/agent/image",
                r#"{{ include "lockstep.image" (list . "agent") }}"#,
            ),
            (
                "containers/agent/args/0",
                "--runtime-endpoint={{ .Values.agents.runtimeEndpoint }}",
            ),
            (
                "containers/agent/volumeMounts/runtime/mountPath",
                FOLDER_OF_SOCKET,
            ),
            ("volumes/runtime/hostPath/path", FOLDER_OF_SOCKET),
            (
                "volumes/pods/hostPath/path",
                "{{ .Values.agents.kubeletFolder }}/pods",
            ),
        ],
    ),
];

/// Structured fields that follow from values: file below `config/`, fields of the pod template's spec
/// and their actions.
type Structures = (&'static str, &'static [(&'static str, Action)]);

const STRUCTURES: &[Structures] = &[
    (
        MANAGER,
        &[
            (
                "imagePullSecrets",
                Action::Optional(".Values.images.pullSecrets"),
            ),
            (
                "nodeSelector",
                Action::Optional(".Values.manager.nodeSelector"),
            ),
            (
                "tolerations",
                Action::Optional(".Values.manager.tolerations"),
            ),
            (
                "containers/manager/resources",
                Action::Block(".Values.manager.resources"),
            ),
        ],
    ),
    (
        "components/agent/daemonset.yaml",
        &[
            (
                "imagePullSecrets",
                Action::Optional(".Values.images.pullSecrets"),
            ),
            (
                "nodeSelector",
                Action::Optional(".Values.agents.nodeSelector"),
            ),
            (
                "tolerations",
                Action::Optional(".Values.agents.tolerations"),
            ),
            (
                "containers/agent/resources",
                Action::Block(".Values.agents.resources"),
            ),
            (
                "containers/agent/securityContext",
                Action::Block(".Values.agents.securityContext"),
            ),
        ],
    ),
];

/// Objects of `config/`.
pub(super) struct Manifests {
    /// Content of the files of ConfigMaps, by path below `config/`.
    files: BTreeMap<String, String>,
    /// By path below `config/`. In a ConfigMap, the path of a file replaces its content.
    objects: BTreeMap<String, Vec<Value>>,
    /// Constraint over zones, of `ha-3`.
    zones: Value,
}

impl Manifests {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let config = root.join("config");
        let ha = read_all(&config.join(HA))?;
        let zones = "/spec/template/spec/topologySpreadConstraints/0";
        let mut out = Self {
            files: BTreeMap::new(),
            objects: BTreeMap::new(),
            zones: at(ha.first().context(HA)?, zones)?.clone(),
        };
        for (folder, _) in FOLDERS {
            let kustomization = read_all(&config.join(folder).join("kustomization.yaml"))?;
            let kustomization = kustomization.first().context(folder)?;
            for name in items(&kustomization["resources"]) {
                let path = format!("{folder}/{}", name.as_str().context("a resource")?);
                let objects = read_all(&config.join(&path))?;
                out.objects.insert(path, objects);
            }
            for generator in items(&kustomization["configMapGenerator"]) {
                out.generate(&config, folder, generator)?;
            }
        }
        let unused = out.objects.remove(NAMESPACE_OF_RELEASE);
        unused.context(NAMESPACE_OF_RELEASE)?;
        Ok(out)
    }

    /// Adds the ConfigMap of a generator.
    fn generate(&mut self, config: &Path, folder: &str, generator: &Value) -> Result<()> {
        let mut data = json!({});
        for name in items(&generator["files"]) {
            let name = name.as_str().context("a file")?;
            let path = format!("{folder}/{name}");
            let text = fs::read_to_string(config.join(&path)).with_context(|| path.clone())?;
            data[name] = json!(path);
            self.files.insert(path, text);
        }
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": generator["name"],
                "namespace": generator["namespace"],
                "labels": generator["options"]["labels"],
            },
            "data": data,
        });
        let path = format!("{folder}/config_map.yaml");
        self.objects.insert(path, vec![map]);
        Ok(())
    }

    /// The only object of a file.
    pub(super) fn object(&self, file: &str) -> Result<&Value> {
        let objects = self.objects.get(file).map(Vec::as_slice);
        let [object] = objects.with_context(|| format!("no manifest {file}"))? else {
            bail!("{file} has several objects");
        };
        Ok(object)
    }

    /// The manager's configuration as shipped.
    pub(super) fn configuration(&self) -> Result<Value> {
        let text = self.files.get(CONFIGURATION).context(CONFIGURATION)?;
        Ok(serde_saphyr::from_str(text)?)
    }

    /// Path in the chart and content of the files of ConfigMaps, except for the configuration.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, String)> {
        let fixed = self.files.iter().filter(|(path, _)| *path != CONFIGURATION);
        fixed.map(|(path, text)| (in_chart(path), text.clone()))
    }

    /// Path in the chart and text of the templates.
    pub(super) fn templates(&self) -> Result<Vec<(String, String)>> {
        let named = TEXTS.iter().map(|(file, ..)| *file);
        for file in named.chain(STRUCTURES.iter().map(|(file, _)| *file)) {
            self.object(file)?;
        }
        let mut out = Vec::new();
        for (file, objects) in &self.objects {
            let text = self.document(file, objects);
            let name = file.trim_start_matches("components/");
            out.push((
                format!("templates/{name}"),
                text.with_context(|| file.clone())?,
            ));
        }
        Ok(out)
    }

    fn document(&self, file: &str, objects: &[Value]) -> Result<String> {
        let mut documents = Vec::new();
        for object in objects {
            documents.push(template(file, object.clone(), &self.zones)?);
        }
        let mut text = documents.join("---\n");
        if file == NAMESPACE_OF_AGENTS {
            text = when("ne .Values.agents.namespace .Release.Namespace", &text);
        }
        let folder = Path::new(file).parent();
        let known = FOLDERS.iter().find(|(f, _)| folder == Some(Path::new(f)));
        let (_, condition) = known.context("a folder")?;
        Ok(format!("{GENERATED}{}", when(condition, &text)))
    }
}

/// Path of a file in the chart.
fn in_chart(path: &str) -> String {
    format!("files/{}", path.trim_start_matches("components/"))
}

fn template(file: &str, mut object: Value, zones: &Value) -> Result<String> {
    let mut template = Template::default();
    replace_namespaces(&mut template, &mut object, "");
    for (_, base, fields) in TEXTS.iter().filter(|(of, ..)| *of == file) {
        for (field, text) in *fields {
            let action = Action::Text((*text).to_owned());
            template.set(&mut object, &format!("{base}/{field}"), action)?;
        }
    }
    for (_, fields) in STRUCTURES.iter().filter(|(of, _)| *of == file) {
        for (field, action) in *fields {
            let path = format!("/spec/template/spec/{field}");
            template.set(&mut object, &path, action.clone())?;
        }
    }
    if file == MANAGER {
        let condition = "ge (int .Values.manager.replicas) 3";
        let action = Action::If(condition, zones.clone());
        let path = "/spec/template/spec/topologySpreadConstraints/zones";
        template.set(&mut object, path, action)?;
    }
    if file.starts_with("components/prometheus/") {
        let action = Action::Beside(".Values.monitoring.prometheus.labels");
        template.set(&mut object, "/metadata/labels/more", action)?;
    }
    if object["kind"] == "ConfigMap" {
        let files = object["data"].as_object_mut().context("data")?;
        for path in files.values_mut() {
            let file = path.as_str().context("a path")?;
            *path = template.marker(Action::Text(if file == CONFIGURATION {
                r#"|{{- include "lockstep.config" . | nindent 4 }}"#.to_owned()
            } else {
                format!("{{{{ .Files.Get \"{}\" | toJson }}}}", in_chart(file))
            }));
        }
    }
    template.text(&object)
}

fn replace_namespaces(template: &mut Template, value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => {
            if fields.get("kind").is_some_and(|kind| kind == "Namespace") {
                replace_namespaces(template, &mut fields["metadata"]["name"], "namespace");
            }
            for (key, value) in fields {
                replace_namespaces(template, value, key);
            }
        }
        Value::Array(values) => {
            for value in values {
                replace_namespaces(template, value, key);
            }
        }
        Value::String(text) if ["namespace", "matchNames"].contains(&key) => {
            let known = NAMESPACES.iter().find(|(name, _)| name == text);
            if let Some((_, text)) = known {
                *value = template.marker(Action::Text((*text).to_owned()));
            }
        }
        _ => {}
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_that_a_rule_names_cannot_be_missing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut manifests = Manifests::read(root).unwrap();
        manifests.objects.remove(MANAGER);
        let refused = manifests.templates().unwrap_err();
        assert_eq!(refused.to_string(), format!("no manifest {MANAGER}"));
    }
}
