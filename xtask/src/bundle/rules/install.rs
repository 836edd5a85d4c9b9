//! Checks of deployments, rights and images.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Bundle, expect, items, text};

const MODES: [&str; 4] = [
    "AllNamespaces",
    "MultiNamespace",
    "OwnNamespace",
    "SingleNamespace",
];
const STRATEGY: &str = "/spec/install/spec";

pub(super) fn check(bundle: &Bundle, out: &mut Vec<String>) {
    let csv = &bundle.csv;
    modes(csv, out);
    let deployments = items(csv, &format!("{STRATEGY}/deployments"));
    expect(!deployments.is_empty(), out, || {
        "no deployment is installed".into()
    });
    for deployment in deployments {
        requests(deployment, out);
    }
    images(csv, deployments, out);
    accounts(bundle, deployments, out);
    rights(csv, out);
}

/// One instance handles all namespaces, the only mode of OLM v1.
fn modes(csv: &Value, out: &mut Vec<String>) {
    let modes = items(csv, "/spec/installModes");
    let mut found: Vec<&str> = modes.iter().map(|m| text(m, "/type")).collect();
    found.sort_unstable();
    expect(found == MODES, out, || {
        format!("spec.installModes are {found:?}, not {MODES:?}")
    });
    for mode in modes {
        let (name, supported) = (text(mode, "/type"), mode["supported"] == true);
        expect(supported == (name == "AllNamespaces"), out, || {
            format!("spec.installModes: {name} is {supported}")
        });
    }
}

fn containers(deployment: &Value) -> &[Value] {
    items(deployment, "/spec/template/spec/containers")
}

fn requests(deployment: &Value, out: &mut Vec<String>) {
    for container in containers(deployment) {
        for resource in ["cpu", "memory"] {
            let path = format!("/resources/requests/{resource}");
            expect(!text(container, &path).is_empty(), out, || {
                format!(
                    "{}: a container requests no {resource}",
                    text(deployment, "/name")
                )
            });
        }
    }
}

/// True for a pullable name: with a registry, and a tag or digest.
fn is_image(name: &str) -> bool {
    let (path, version) = match name.split_once("@sha256:") {
        Some((path, digest)) => (
            path,
            digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()),
        ),
        None => name.rsplit_once(':').map_or((name, false), |(path, tag)| {
            (path, !tag.is_empty() && !tag.contains('/'))
        }),
    };
    let is_path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-:".contains(c);
    version && path.contains('/') && path.chars().all(is_path)
}

/// Every deployed image is in the related images, which OLM mirrors.
fn images(csv: &Value, deployments: &[Value], out: &mut Vec<String>) {
    let related: BTreeSet<&str> = items(csv, "/spec/relatedImages")
        .iter()
        .map(|i| text(i, "/image"))
        .collect();
    for image in &related {
        expect(is_image(image), out, || {
            format!("spec.relatedImages: {image:?} cannot be pulled")
        });
    }
    for container in deployments.iter().flat_map(containers) {
        let variables = items(container, "/env").iter();
        let variables = variables.filter(|e| text(e, "/name").starts_with("RELATED_IMAGE_"));
        let named = variables
            .map(|e| text(e, "/value"))
            .chain([text(container, "/image")]);
        for image in named {
            expect(related.contains(image), out, || {
                format!("{image:?} is not among spec.relatedImages")
            });
        }
    }
    let shown = text(csv, "/metadata/annotations/containerImage");
    expect(related.contains(shown), out, || {
        format!("containerImage {shown:?} is not among spec.relatedImages")
    });
}

/// OLM creates only accounts with rights in the ClusterServiceVersion.
fn accounts(bundle: &Bundle, deployments: &[Value], out: &mut Vec<String>) {
    let with_rights: BTreeSet<&str> = ["permissions", "clusterPermissions"]
        .iter()
        .flat_map(|part| items(&bundle.csv, &format!("{STRATEGY}/{part}")))
        .map(|p| text(p, "/serviceAccountName"))
        .collect();
    for deployment in deployments {
        let account = text(deployment, "/spec/template/spec/serviceAccountName");
        expect(with_rights.contains(account), out, || {
            format!(
                "{}: account {account:?} has no rights",
                text(deployment, "/name")
            )
        });
    }
    for object in &bundle.objects {
        let name = text(object, "/metadata/name");
        let twice = text(object, "/kind") == "ServiceAccount" && with_rights.contains(name);
        expect(!twice, out, || {
            format!("ServiceAccount {name} is made by OLM, too")
        });
    }
}

/// No wildcard rights, and no right to change definitions: OLM manages them.
fn rights(csv: &Value, out: &mut Vec<String>) {
    for part in ["permissions", "clusterPermissions"] {
        for permission in items(csv, &format!("{STRATEGY}/{part}")) {
            let account = text(permission, "/serviceAccountName");
            for rule in items(permission, "/rules") {
                let all = ["/apiGroups", "/resources", "/verbs"]
                    .iter()
                    .any(|p| has(rule, p, "*"));
                expect(!all, out, || {
                    format!("{account}: a right on everything: {rule}")
                });
                let definitions = has(rule, "/resources", "customresourcedefinitions");
                expect(!definitions, out, || {
                    format!("{account}: a right on definitions: {rule}")
                });
            }
        }
    }
}

fn has(rule: &Value, path: &str, item: &str) -> bool {
    items(rule, path).iter().any(|i| i == item)
}
