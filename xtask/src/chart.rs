//! Generated parts of the Helm chart: copies of objects that no value changes, and the schema of the
//! configuration. Everything else in `charts/lockstep` is written by hand.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lockstep_manager::config::Config;
use serde_json::{Map, Value, json};

use crate::bundle::{Images, PREFIX, TAG};
use crate::{dashboards, query, read_folder};

const CHART: &str = "charts/lockstep";
/// Folders below `config/`, and the files that are copied. None: all files of the folder.
const COPIED: [(&str, &[&str]); 7] = [
    (
        "manager",
        &[
            "flow_control.yaml",
            "leader_election_role.yaml",
            "metrics_service.yaml",
            "role.yaml",
            "role_binding.yaml",
        ],
    ),
    ("rbac", &[]),
    ("policies", &[]),
    (
        "components/agent",
        &["flow_control.yaml", "role.yaml", "role_binding.yaml"],
    ),
    ("components/prometheus", &["prometheus_rule.yaml"]),
    ("components/provisioning-requests", &[]),
    ("components/kueue", &[]),
];

/// Path from the root and content of the generated files, except the definitions.
pub fn generated(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut out = Vec::new();
    for (folder, files) in COPIED {
        let name = folder.trim_start_matches("components/");
        for (path, text) in read_folder(&root.join("config").join(folder))? {
            let file = path.to_str().context("a name")?;
            let is_copied = files.is_empty() || files.contains(&file);
            if is_copied && file != "kustomization.yaml" {
                out.push((path_of_copy(&format!("{name}/{file}")), text));
            }
        }
    }
    for (path, text) in dashboards::files(root)? {
        let file = path.file_name().context("a name")?.to_string_lossy();
        out.push((path_of_copy(&format!("dashboards/{file}")), text));
    }
    let path = Path::new(CHART).join("values.schema.json");
    let schema = fs::read_to_string(root.join(&path)).context("the schema")?;
    let mut schema: Value = serde_json::from_str(&schema).context("the schema")?;
    schema["properties"]["config"] = closed(&serde_json::to_value(Config::default())?);
    let monitoring = &mut schema["properties"]["monitoring"]["properties"];
    monitoring["prometheus"]["properties"]["alerts"] = alerts(root)?;
    out.push((path, format!("{schema:#}\n")));
    Ok(out)
}

/// Schema of the values of single alerts. An expression that ends with a number has a threshold.
fn alerts(root: &Path) -> Result<Value> {
    let mut properties = Map::new();
    for rule in query::rules(root)? {
        let Some(name) = rule["alert"].as_str() else {
            continue;
        };
        let mut own = json!({
            "enabled": {"type": "boolean"},
            "for": {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        });
        let words: Vec<&str> = rule["expr"].as_str().context("expr")?.split(' ').collect();
        if let [.., ">" | "<=", _] = words[..] {
            own["threshold"] = json!({"type": "number"});
        }
        let own = json!({"type": "object", "additionalProperties": false, "properties": own});
        properties.insert(name.to_owned(), own);
    }
    Ok(json!({"type": "object", "additionalProperties": false, "properties": properties}))
}

/// Path of a copied file in the chart, from the root.
pub fn path_of_copy(file: &str) -> PathBuf {
    Path::new(CHART).join("files").join(file)
}

/// Schema of the configuration by its defaults: no key besides these.
fn closed(default: &Value) -> Value {
    let kind = match default {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let mut schema = json!({"type": kind});
    let keys = default.as_object().filter(|keys| !keys.is_empty());
    if let Some(keys) = keys {
        let properties = keys.iter().map(|(key, value)| (key.clone(), closed(value)));
        schema["properties"] = properties.collect();
        schema["additionalProperties"] = json!(false);
    }
    schema
}

/// Path in the chart and content of every file, with these images by digest.
pub fn released(root: &Path, images: &Images) -> Result<Vec<(PathBuf, String)>> {
    let mut files = read_folder(&root.join(CHART))?;
    let file = |name: &str| files.iter().position(|(path, _)| path == Path::new(name));
    let values = file("values.yaml").context("the values")?;
    let chart = file("Chart.yaml").context("the metadata")?;
    let mut change = |at: usize, from: &str, to: &str| {
        let text = &mut files[at].1;
        *text = substitute(text, from, to)?;
        anyhow::Ok(())
    };
    let prefix = images.manager.split("lockstep-manager").next();
    let prefix = format!("  prefix: {}\n", prefix.context("a prefix")?);
    change(values, &format!("  prefix: {PREFIX}\n"), &prefix)?;
    for (program, image) in [
        ("manager", &images.manager),
        ("agent", &images.agent),
        ("run", &images.supervisor),
    ] {
        let (_, digest) = image.split_once('@').context("a digest")?;
        change(chart, &format!("{PREFIX}lockstep-{program}:{TAG}"), image)?;
        let line = |text: &str| format!("    {program}: {text}\n");
        change(values, &line("\"\""), &line(digest))?;
    }
    Ok(files)
}

/// Replaces text that occurs once.
pub(crate) fn substitute(text: &str, from: &str, to: &str) -> Result<String> {
    let found = text.matches(from).count();
    ensure!(found == 1, "{found} times {from:?}");
    Ok(text.replace(from, to))
}
