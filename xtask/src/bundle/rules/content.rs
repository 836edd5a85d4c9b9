//! Checks of the content: kinds, owned definitions, examples and descriptors.

use std::collections::BTreeSet;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::{Bundle, expect, items, text};
use crate::bundle::csv::LEDGER;

/// Allowed kinds besides the ClusterServiceVersion and definitions. DaemonSet, admission policies
/// and Namespace are not allowed.
const KINDS: [&str; 20] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ConsoleCLIDownload",
    "ConsoleLink",
    "ConsolePlugin",
    "ConsoleQuickStart",
    "ConsoleYAMLSample",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "PriorityClass",
    "PrometheusRule",
    "Role",
    "RoleBinding",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
    "VerticalPodAutoscaler",
];
/// Largest compressed size in bytes: OLM stages a bundle in one ConfigMap.
const LARGEST: usize = 1 << 20;

pub(super) fn check(bundle: &Bundle, out: &mut Vec<String>) {
    for object in &bundle.objects {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        expect(KINDS.contains(&kind), out, || {
            format!("{kind} {name}: a bundle may not hold this kind")
        });
        expect(object.pointer("/metadata/namespace").is_none(), out, || {
            format!("{kind} {name}: names a namespace, and OLM has its own")
        });
    }
    let size = compressed(bundle);
    expect(size < LARGEST, out, || {
        format!("{size} bytes compressed, more than {LARGEST}")
    });
    owned(bundle, out);
    examples(bundle, out);
}

fn compressed(bundle: &Bundle) -> usize {
    let mut zip = GzEncoder::new(Vec::new(), Compression::default());
    let all = bundle
        .crds
        .iter()
        .chain(&bundle.objects)
        .chain([&bundle.csv]);
    for object in all {
        // Writing to memory cannot fail.
        let _ = zip.write_all(object.to_string().as_bytes());
    }
    zip.finish().map_or(usize::MAX, |bytes| bytes.len())
}

fn descriptions(csv: &Value) -> &[Value] {
    items(csv, "/spec/customresourcedefinitions/owned")
}

/// Name, kind and version of each definition match its description.
fn owned(bundle: &Bundle, out: &mut Vec<String>) {
    let described: Vec<_> = descriptions(&bundle.csv)
        .iter()
        .map(|d| (text(d, "/name"), text(d, "/kind"), text(d, "/version")))
        .collect();
    let there: Vec<_> = bundle
        .crds
        .iter()
        .map(|c| {
            (
                text(c, "/metadata/name"),
                text(c, "/spec/names/kind"),
                text(c, "/spec/versions/0/name"),
            )
        })
        .collect();
    for one in &described {
        expect(there.contains(one), out, || {
            format!("owned {one:?} is not in the bundle")
        });
    }
    for one in &there {
        let times = described.iter().filter(|d| *d == one).count();
        expect(times == 1, out, || {
            format!("{one:?} is {times} times in the list of owned definitions")
        });
    }
    for one in descriptions(&bundle.csv) {
        let name = text(one, "/name");
        for path in ["/description", "/displayName"] {
            expect(!text(one, path).is_empty(), out, || {
                format!("owned {name}: {path} is empty")
            });
        }
        expect(!items(one, "/resources").is_empty(), out, || {
            format!("owned {name}: lists no resources")
        });
        for part in ["/specDescriptors", "/statusDescriptors"] {
            for field in items(one, part) {
                let (path, says) = (text(field, "/path"), text(field, "/description"));
                expect(!says.starts_with(LEDGER), out, || {
                    format!("owned {name}: {path} is of the ledger, which consoles do not explain")
                });
            }
        }
    }
}

fn examples(bundle: &Bundle, out: &mut Vec<String>) {
    let annotation = |key: &str| text(&bundle.csv, &format!("/metadata/annotations/{key}"));
    let Ok(Value::Array(examples)) = serde_json::from_str(annotation("alm-examples")) else {
        out.push("alm-examples is no list in JSON".into());
        return;
    };
    let internal = annotation("operators.operatorframework.io~1internal-objects");
    let internal: BTreeSet<String> = serde_json::from_str(internal).unwrap_or_default();
    let mut shown = BTreeSet::new();
    for example in &examples {
        let (kind, api) = (text(example, "/kind"), text(example, "/apiVersion"));
        let crd = bundle.crds.iter().find(|c| is_served_as(c, kind, api));
        let Some(crd) = crd else {
            out.push(format!("alm-examples: {api} {kind} is not owned"));
            continue;
        };
        shown.insert(text(crd, "/metadata/name"));
        example_fits(bundle, example, crd, out);
    }
    for crd in &bundle.crds {
        let name = text(crd, "/metadata/name");
        expect(shown.contains(name) != internal.contains(name), out, || {
            format!("{name} has neither an example nor is it internal, or both")
        });
    }
}

fn is_served_as(crd: &Value, kind: &str, api_version: &str) -> bool {
    let group = text(crd, "/spec/group");
    let versions = items(crd, "/spec/versions").iter();
    let mut versions = versions.map(|v| format!("{group}/{}", text(v, "/name")));
    text(crd, "/spec/names/kind") == kind && versions.any(|v| v == api_version)
}

/// Every key of an example is in the schema and has a descriptor.
fn example_fits(bundle: &Bundle, example: &Value, crd: &Value, out: &mut Vec<String>) {
    let name = text(crd, "/metadata/name");
    let example_name = text(example, "/metadata/name");
    let description = descriptions(&bundle.csv)
        .iter()
        .find(|d| text(d, "/name") == name);
    let description = description.unwrap_or(&Value::Null);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
    for (part, descriptors) in [
        ("spec", "/specDescriptors"),
        ("status", "/statusDescriptors"),
    ] {
        let keys = example.get(part).and_then(Value::as_object);
        expect(keys.is_some() || part == "status", out, || {
            format!("alm-examples: {example_name} has no {part}")
        });
        for key in keys.into_iter().flatten().map(|(key, _)| key) {
            let field = crd.pointer(&format!("{schema}/{part}/properties/{key}"));
            expect(field.is_some(), out, || {
                format!("alm-examples: {example_name} has {part}.{key}, which {name} does not know")
            });
            let mut paths = items(description, descriptors)
                .iter()
                .map(|d| text(d, "/path"));
            expect(paths.any(|p| p == key), out, || {
                format!("owned {name}: no descriptor of {part}.{key}")
            });
        }
    }
}
