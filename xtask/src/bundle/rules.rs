//! Checks of a bundle, as in upstream's validators and scorecard: operator-framework/api
//! `pkg/validation/internal` (`csv.go`, `bundle.go`, `operatorhubv2.go`, `good_practices.go`,
//! `standardcapabilities.go`, `standardcategories.go`), operator-registry `pkg/lib/bundle`
//! (`validate.go`, `supported_resources.go`) and the scorecard of operator-sdk. Upstream's warnings
//! are errors here.

mod content;
mod install;
mod listing;

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Bundle {
    pub csv: Value,
    /// The custom resource definitions.
    pub crds: Vec<Value>,
    /// All other objects below `manifests/`.
    pub objects: Vec<Value>,
    /// Content of `metadata/annotations.yaml` below `annotations`.
    pub annotations: Value,
    /// Content of `bundle.Dockerfile`.
    pub dockerfile: String,
}

/// Returns all errors in a bundle, one sentence each.
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

fn expect(holds: bool, out: &mut Vec<String>, mistake: impl FnOnce() -> String) {
    if !holds {
        out.push(mistake());
    }
}
