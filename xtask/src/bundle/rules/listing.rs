//! Checks of the listing: name, version, maintainers, icon, channels.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semver::Version;
use serde_json::Value;

use super::{Bundle, expect, items, text};

/// Longest name in characters: the name becomes a label value.
const LONGEST: usize = 63;
const ICONS: [&str; 4] = ["image/gif", "image/jpeg", "image/png", "image/svg+xml"];
const CAPABILITIES: [&str; 5] = [
    "Basic Install",
    "Seamless Upgrades",
    "Full Lifecycle",
    "Deep Insights",
    "Auto Pilot",
];
const CATEGORIES: [&str; 16] = [
    "AI/Machine Learning",
    "Application Runtime",
    "Big Data",
    "Cloud Provider",
    "Developer Tools",
    "Database",
    "Integration & Delivery",
    "Logging & Tracing",
    "Monitoring",
    "Modernization & Migration",
    "Networking",
    "OpenShift Optional",
    "Security",
    "Storage",
    "Streaming & Messaging",
    "Observability",
];
/// Prefixes of channel names.
const CHANNELS: [&str; 3] = ["candidate", "fast", "stable"];
const PREFIX: &str = "operators.operatorframework.io.bundle.";
/// Metadata keys and values; empty: any value.
const METADATA: [(&str, &str); 6] = [
    ("mediatype.v1", "registry+v1"),
    ("manifests.v1", "manifests/"),
    ("metadata.v1", "metadata/"),
    ("package.v1", ""),
    ("channels.v1", ""),
    ("channel.default.v1", ""),
];

pub(super) fn check(bundle: &Bundle, out: &mut Vec<String>) {
    name_and_version(bundle, out);
    people_and_links(&bundle.csv, out);
    icon(&bundle.csv, out);
    level_and_category(&bundle.csv, out);
    metadata(bundle, out);
}

fn name_and_version(bundle: &Bundle, out: &mut Vec<String>) {
    let csv = &bundle.csv;
    expect(
        text(csv, "/apiVersion") == "operators.coreos.com/v1alpha1"
            && text(csv, "/kind") == "ClusterServiceVersion",
        out,
        || "the ClusterServiceVersion has another apiVersion or kind".into(),
    );
    let (name, version) = (text(csv, "/metadata/name"), text(csv, "/spec/version"));
    let package = text(&bundle.annotations, &format!("/{PREFIX}package.v1"));
    expect(name == format!("{package}.v{version}"), out, || {
        format!("metadata.name {name:?} is not {package}.v{version}")
    });
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    expect(
        name.len() <= LONGEST && name.chars().all(is_name),
        out,
        || format!("metadata.name {name:?} is no name of at most {LONGEST} characters"),
    );
    for path in ["/spec/version", "/spec/minKubeVersion"] {
        let version = text(csv, path);
        expect(Version::parse(version).is_ok(), out, || {
            format!("{path} {version:?} is no semantic version")
        });
    }
    for path in ["/spec/displayName", "/spec/description", "/spec/maturity"] {
        expect(!text(csv, path).is_empty(), out, || {
            format!("{path} is empty")
        });
    }
}

fn people_and_links(csv: &Value, out: &mut Vec<String>) {
    expect(!text(csv, "/spec/provider/name").is_empty(), out, || {
        "spec.provider has no name".into()
    });
    let (maintainers, links) = (items(csv, "/spec/maintainers"), items(csv, "/spec/links"));
    expect(!maintainers.is_empty(), out, || {
        "spec.maintainers is empty".into()
    });
    for one in maintainers {
        let mail = text(one, "/email");
        let is_mail = mail
            .split_once('@')
            .is_some_and(|(who, at)| !who.is_empty() && at.contains('.'));
        expect(is_mail && !text(one, "/name").is_empty(), out, || {
            format!("spec.maintainers: {one} has no name or no mail address")
        });
    }
    expect(!links.is_empty(), out, || "spec.links is empty".into());
    for link in links {
        expect(
            text(link, "/url").starts_with("https://") && !text(link, "/name").is_empty(),
            out,
            || format!("spec.links: {link} has no name or no URL"),
        );
    }
}

fn icon(csv: &Value, out: &mut Vec<String>) {
    let [icon] = items(csv, "/spec/icon") else {
        out.push("spec.icon is not one picture".into());
        return;
    };
    let media = text(icon, "/mediatype");
    expect(ICONS.contains(&media), out, || {
        format!("spec.icon: {media:?} is none of {}", ICONS.join(", "))
    });
    let data = STANDARD.decode(text(icon, "/base64data"));
    expect(data.is_ok_and(|d| !d.is_empty()), out, || {
        "spec.icon: base64data is not base 64".into()
    });
}

fn level_and_category(csv: &Value, out: &mut Vec<String>) {
    let level = text(csv, "/metadata/annotations/capabilities");
    expect(CAPABILITIES.contains(&level), out, || {
        format!(
            "capabilities {level:?} is none of {}",
            CAPABILITIES.join(", ")
        )
    });
    for category in text(csv, "/metadata/annotations/categories").split(',') {
        let category = category.trim();
        expect(CATEGORIES.contains(&category), out, || {
            format!("categories: {category:?} is not in the list")
        });
    }
}

fn metadata(bundle: &Bundle, out: &mut Vec<String>) {
    for (key, value) in METADATA {
        let key = format!("{PREFIX}{key}");
        let found = text(&bundle.annotations, &format!("/{key}"));
        expect(
            !found.is_empty() && (value.is_empty() || found == value),
            out,
            || format!("annotations: {key} is {found:?}, not {value:?}"),
        );
        let label = format!("LABEL {key}={found}\n");
        expect(bundle.dockerfile.contains(&label), out, || {
            format!("bundle.Dockerfile: no label {key}={found}")
        });
    }
    let channels = text(&bundle.annotations, &format!("/{PREFIX}channels.v1"));
    let default = text(&bundle.annotations, &format!("/{PREFIX}channel.default.v1"));
    expect(channels.split(',').any(|c| c == default), out, || {
        format!("annotations: the default channel {default:?} is none of {channels:?}")
    });
    for channel in channels.split(',') {
        expect(CHANNELS.iter().any(|c| channel.starts_with(c)), out, || {
            format!(
                "annotations: channel {channel:?} does not begin with {}",
                CHANNELS.join(", ")
            )
        });
    }
}
