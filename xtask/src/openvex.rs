//! OpenVEX documents (v0.2.0) of the images, from the advisories that `deny.toml` ignores.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item, Value as Toml};

use crate::bundle::REPOSITORY;

const CONTEXT: &str = "https://openvex.dev/ns/v0.2.0";

/// Labels of the specification for a product that is not affected.
const JUSTIFICATIONS: [&str; 5] = [
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
];

/// An advisory that does not affect the images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredAdvisory {
    /// Such as RUSTSEC-2026-0001.
    id: String,
    justification: String,
    /// The rest of the reason.
    notes: String,
}

/// Reads `advisories.ignore` of a `deny.toml`. An ignored advisory needs a reason of the form
/// `<justification>: <notes>`. Ignored crates, which were yanked, have no advisory.
pub fn ignored_advisories(deny: &str) -> Result<Vec<IgnoredAdvisory>> {
    let deny: DocumentMut = deny.parse().context("deny.toml")?;
    let entries = deny.get("advisories").and_then(|a| a.get("ignore"));
    let entries = entries.and_then(Item::as_array).into_iter().flatten();
    let mut out = Vec::new();
    for entry in entries {
        let field = |name| {
            let fields = entry.as_inline_table();
            fields.and_then(|f| f.get(name)).and_then(Toml::as_str)
        };
        let id = match (entry.as_str(), field("id")) {
            (Some(id), _) if id.starts_with("RUSTSEC-") => id,
            (_, Some(id)) => id,
            _ => continue,
        };
        let reason = field("reason").unwrap_or_default();
        let Some((justification, notes)) = reason.split_once(": ") else {
            bail!(
                "deny.toml: advisories.ignore: {id}: reason {reason:?} is not `JUSTIFICATION: WORDS`"
            );
        };
        ensure!(
            JUSTIFICATIONS.contains(&justification),
            "deny.toml: advisories.ignore: {id}: {justification:?} is none of {}",
            JUSTIFICATIONS.join(", ")
        );
        out.push(IgnoredAdvisory {
            id: id.to_owned(),
            justification: justification.to_owned(),
            notes: notes.to_owned(),
        });
    }
    Ok(out)
}

/// Name of an image without registry, and its document. `image` has a digest, `time` is in RFC 3339.
pub fn document<'i>(
    image: &'i str,
    ignored: &[IgnoredAdvisory],
    time: &str,
) -> Result<(&'i str, Value)> {
    let (name, digest) = image.split_once('@').context("an image by digest")?;
    let program = name.rsplit('/').next().unwrap_or(name);
    let digest = digest.replace(':', "%3A");
    let product = json!({"@id": format!("pkg:oci/{program}@{digest}?repository_url={name}")});
    let statement = |advisory: &IgnoredAdvisory| {
        json!({
            "vulnerability": {"name": advisory.id},
            "products": [product],
            "status": "not_affected",
            "justification": advisory.justification,
            "status_notes": advisory.notes,
        })
    };
    let statements: Vec<Value> = ignored.iter().map(statement).collect();
    let document = json!({
        "@context": CONTEXT,
        "@id": format!("{REPOSITORY}/vex/{program}/{digest}"),
        "author": REPOSITORY,
        "timestamp": time,
        "version": 1,
        "statements": statements,
    });
    Ok((program, document))
}
