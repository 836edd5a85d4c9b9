//! What makes a bundle be refused or hard to use, as upstream's validators and scorecard have it:
//! operator-framework/api `pkg/validation/internal` (`csv.go`, `bundle.go`, `operatorhubv2.go`,
//! `good_practices.go`, `standardcapabilities.go`, `standardcategories.go`), operator-registry
//! `pkg/lib/bundle` (`validate.go`, `supported_resources.go`) and the scorecard of operator-sdk.
//! What they only warn of is a mistake here.

mod content;
mod install;
mod listing;

use serde_json::Value;

/// A bundle as values.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The ClusterServiceVersion.
    pub csv: Value,
    /// The definitions.
    pub crds: Vec<Value>,
    /// Everything else below `manifests/`.
    pub objects: Vec<Value>,
    /// `metadata/annotations.yaml` below `annotations`.
    pub annotations: Value,
    /// `bundle.Dockerfile`.
    pub dockerfile: String,
}

/// Everything that is wrong with a bundle, a sentence each.
pub fn mistakes(bundle: &Bundle) -> Vec<String> {
    let mut out = Vec::new();
    listing::check(bundle, &mut out);
    content::check(bundle, &mut out);
    install::check(bundle, &mut out);
    out
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn items<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value
        .pointer(path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Notes a mistake unless something holds.
fn expect(holds: bool, out: &mut Vec<String>, mistake: impl FnOnce() -> String) {
    if !holds {
        out.push(mistake());
    }
}
