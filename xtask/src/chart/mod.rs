//! The Helm chart, generated from `config/` and the Rust types. An end-to-end test compares its objects
//! with those of the overlays.

mod manifest;
mod template;
mod values;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::manifest::Manifests;
use self::template::{Action, Template, when};
use crate::bundle::{GENERATED, Images, KEYWORDS, MIN_KUBE_VERSION, PACKAGE, REPOSITORY, SUMMARY};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Path in the chart and content of every file.
pub fn chart(root: &Path, images: &Images) -> Result<Vec<(PathBuf, String)>> {
    let manifests = Manifests::read(root)?;
    let settings = values::settings(&manifests, images)?;
    let helm = root.join("config/helm");
    let read = |name: &str| fs::read_to_string(helm.join(name)).with_context(|| name.to_owned());
    let readme = format!("{}{}", read("README.md")?, values::table(&settings));
    let mut out = vec![
        ("Chart.yaml".to_owned(), metadata(root, images)?),
        ("README.md".to_owned(), readme),
        ("values.yaml".to_owned(), values::values(&settings)?),
        ("values.schema.json".to_owned(), values::schema(&settings)?),
        ("templates/NOTES.txt".to_owned(), read("NOTES.txt")?),
        ("templates/_helpers.tpl".to_owned(), read("_helpers.tpl")?),
    ];
    out.extend(definitions()?);
    out.extend(manifests.templates()?);
    out.extend(manifests.files());
    Ok(out
        .into_iter()
        .map(|(path, text)| (PathBuf::from(path), text))
        .collect())
}

/// Definitions are templates, because Helm never upgrades those in a chart's folder `crds`.
fn definitions() -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for crd in lockstep_api::crds::all() {
        let name = crd.metadata.name.clone().context("a name")?;
        let mut object = serde_json::to_value(crd)?;
        let mut template = Template::default();
        let keep = json!({"helm.sh/resource-policy": "keep"});
        let action = Action::If(".Values.crds.keep", keep);
        template.set(&mut object, "/metadata/annotations", action)?;
        let text = when(".Values.crds.enabled", &template.text(&object)?);
        out.push((
            format!("templates/crds/{name}.yaml"),
            format!("{GENERATED}{text}"),
        ));
    }
    Ok(out)
}

fn metadata(root: &Path, images: &Images) -> Result<String> {
    let kinds = lockstep_api::crds::all().into_iter().map(|crd| {
        let names = &crd.spec.names;
        let version = &crd.spec.versions[0];
        let schema = version.schema.as_ref();
        let schema = schema.and_then(|s| s.open_api_v3_schema.as_ref());
        json!({
            "kind": names.kind, "version": version.name, "name": crd.metadata.name,
            "displayName": names.kind, "description": schema.and_then(|s| s.description.as_ref()),
        })
    });
    let sample = fs::read_to_string(root.join("samples/01-minimal.yaml"))?;
    let sample: Value = serde_saphyr::from_str(&sample).context("a sample")?;
    let related = [
        ("lockstep-manager", &images.manager),
        ("lockstep-agent", &images.agent),
        ("lockstep-run", &images.supervisor),
    ];
    let related = related.map(|(name, image)| json!({"name": name, "image": image}));
    let yaml = |value: Value| anyhow::Ok(serde_saphyr::to_string(&value)?);
    let chart = json!({
        "apiVersion": "v2",
        "name": PACKAGE,
        "description": SUMMARY,
        "type": "application",
        "version": VERSION,
        "appVersion": VERSION,
        "kubeVersion": format!(">={MIN_KUBE_VERSION}-0"),
        "home": REPOSITORY,
        "sources": [REPOSITORY],
        "icon": format!("{REPOSITORY}/raw/main/config/olm/icon.svg"),
        "keywords": KEYWORDS,
        "maintainers": [{"name": "The Lockstep maintainers", "url": REPOSITORY}],
        "annotations": {
            "artifacthub.io/category": "ai-machine-learning",
            "artifacthub.io/crds": yaml(kinds.collect())?,
            "artifacthub.io/crdsExamples": yaml(json!([sample]))?,
            "artifacthub.io/images": yaml(json!(related))?,
            "artifacthub.io/license": env!("CARGO_PKG_LICENSE"),
            "artifacthub.io/links": yaml(json!([
                {"name": "Documentation", "url": format!("{REPOSITORY}/tree/main/docs")},
            ]))?,
            "artifacthub.io/operator": "true",
            "artifacthub.io/operatorCapabilities": "Basic Install",
        },
    });
    Ok(format!("{GENERATED}{}", serde_saphyr::to_string(&chart)?))
}
