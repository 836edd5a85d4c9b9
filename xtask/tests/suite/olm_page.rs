//! The OLM manifests in `docs/install/olm.md` match the bundle.

use std::path::Path;

use serde_json::{Value, json};
use xtask::bundle::{Images, bundle};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Values in the page's OLM manifests that differ from the bundle, by kind.
fn not_as_bundled(page: &str) -> Vec<String> {
    let images = Images::tagged("ghcr.io/lockstep-dev/", "v0.1.0");
    let annotations = bundle(root(), &images).unwrap().annotations;
    let of =
        |key: &str| annotations[format!("operators.operatorframework.io.bundle.{key}.v1")].clone();
    let (package, channel) = (of("package"), of("channel.default"));
    let blocks = page.split("\n```yaml\n").skip(1);
    let documents = blocks
        .filter_map(|b| b.split("\n```").next())
        .flat_map(|b| b.split("\n---\n"));
    let objects: Vec<Value> = documents
        .filter_map(|d| serde_saphyr::from_str(d).ok())
        .collect();
    let object = |kind: &str| {
        objects
            .iter()
            .find(|o| o["kind"] == kind)
            .cloned()
            .unwrap_or_default()
    };
    let subscription = object("Subscription");
    let catalog = &object("ClusterExtension")["spec"]["source"]["catalog"];
    let mut out = Vec::new();
    for (what, says, is) in [
        (
            "Subscription: package",
            &subscription["spec"]["name"],
            &package,
        ),
        (
            "Subscription: channel",
            &subscription["spec"]["channel"],
            &channel,
        ),
        (
            "ClusterExtension: package",
            &catalog["packageName"],
            &package,
        ),
        (
            "ClusterExtension: channel",
            &catalog["channels"][0],
            &channel,
        ),
        // AllNamespaces is the only install mode.
        (
            "OperatorGroup: spec",
            &object("OperatorGroup")["spec"],
            &json!({}),
        ),
    ] {
        if says != is {
            out.push(format!("{what}: {says} instead of {is}"));
        }
    }
    let components = text_of_components();
    let variable = &subscription["spec"]["config"]["env"][0]["name"];
    if variable
        .as_str()
        .is_none_or(|name| !components.contains(&format!("name: {name}")))
    {
        out.push(format!("Subscription: variable {variable}"));
    }
    out
}

/// The deployment that reads the page's variable.
fn text_of_components() -> String {
    std::fs::read_to_string(root().join("config/olm/components_deployment.yaml")).unwrap()
}

#[test]
fn the_olm_page_uses_the_package_and_channel_names_of_the_bundle() {
    let page = include_str!("../../../docs/install/olm.md");
    assert_eq!(not_as_bundled(page), Vec::<String>::new());
    for (right, mistake, said) in [
        (
            "  name: lockstep\n  channel",
            "  name: lock\n  channel",
            "Subscription: package",
        ),
        (
            "channel: candidate-v0",
            "channel: stable",
            "Subscription: channel",
        ),
        (
            "packageName: lockstep",
            "packageName: lock",
            "ClusterExtension: package",
        ),
        (
            "channels: [candidate-v0]",
            "channels: [stable]",
            "ClusterExtension: channel",
        ),
        (
            "spec: {}",
            "spec: {targetNamespaces: [operators]}",
            "OperatorGroup: spec",
        ),
        (
            "name: LOCKSTEP_AGENT_RUNTIME_ENDPOINT,",
            "name: SOCKET,",
            "Subscription: variable",
        ),
    ] {
        let found = not_as_bundled(&page.replacen(right, mistake, 1));
        assert!(
            found.len() == 1 && found[0].starts_with(said),
            "{mistake}: {found:?}"
        );
    }
}
