//! Model of kube-state-metrics' output for a configuration and an object, limited to the features
//! in use. Based on `pkg/customresourcestate/registry_factory.go`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A series: name, labels, value.
pub type Series = (String, BTreeMap<String, String>, f64);

type Sample = (BTreeMap<String, String>, f64);

/// Series of an object. Errors are those that kube-state-metrics would log: a value that is no
/// number, or an unknown type.
pub fn render(config: &Value, object: &Value) -> Result<Vec<Series>> {
    let mut out = Vec::new();
    for resource in list(&config["spec"]["resources"]) {
        let wanted = &resource["groupVersionKind"];
        let version = format!("{}/{}", text(&wanted["group"])?, text(&wanted["version"])?);
        if object["apiVersion"] != version || object["kind"] != wanted["kind"] {
            continue;
        }
        let of_all = labels(&resource["labelsFromPath"], object)?;
        for metric in list(&resource["metrics"]) {
            let name = format!(
                "{}_{}",
                text(&resource["metricNamePrefix"])?,
                text(&metric["name"])?
            );
            for (own, value) in samples(&metric["each"], object).context(name.clone())? {
                let mut labels = of_all.clone();
                labels.extend(own);
                out.push((name.clone(), labels, value));
            }
        }
    }
    Ok(out)
}

fn samples(each: &Value, object: &Value) -> Result<Vec<Sample>> {
    match text(&each["type"])? {
        "Info" => info(&each["info"], object),
        "StateSet" => state_set(&each["stateSet"], object),
        "Gauge" => gauge(&each["gauge"], object),
        other => bail!("no type {other}"),
    }
}

/// kube-state-metrics looks for labels in the object and in each of its fields.
fn info(source: &Value, object: &Value) -> Result<Vec<Sample>> {
    let at = get(&source["path"], object)?;
    let fields = at
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.values());
    let found = fields
        .chain([at])
        .map(|place| labels(&source["labelsFromPath"], place))
        .collect::<Result<Vec<_>>>()?;
    let found = found.into_iter().filter(|labels| !labels.is_empty());
    Ok(found.map(|labels| (labels, 1.0)).collect())
}

fn state_set(source: &Value, object: &Value) -> Result<Vec<Sample>> {
    let at = get(&source["path"], object)?;
    if at.is_null() {
        return Ok(Vec::new());
    }
    let state = text(at)?;
    let label = text(&source["labelName"])?;
    let states = list(&source["list"])
        .map(text)
        .collect::<Result<Vec<_>>>()?;
    ensure!(states.contains(&state), "{state} is none of the states");
    let of = |entry: &str| {
        let labels = BTreeMap::from([(label.to_owned(), entry.to_owned())]);
        (labels, f64::from(u8::from(entry == state)))
    };
    Ok(states.into_iter().map(of).collect())
}

/// kube-state-metrics iterates over the keys of a map; no metric here needs that.
fn gauge(source: &Value, object: &Value) -> Result<Vec<Sample>> {
    let at = get(&source["path"], object)?;
    ensure!(!at.is_object(), "{at}: a map");
    let elements = match at {
        Value::Array(elements) => elements.iter().collect(),
        other => vec![other],
    };
    let mut out = Vec::new();
    for element in elements {
        let value = get(&source["valueFrom"], element)?;
        let value = match value {
            Value::Null if source["nilIsZero"] == true => 0.0,
            Value::Null => continue,
            value => number(value)?,
        };
        out.push((labels(&source["labelsFromPath"], element)?, value));
    }
    Ok(out)
}

fn number(value: &Value) -> Result<f64> {
    if let Some(number) = value.as_f64() {
        return Ok(number);
    }
    match text(value)?.to_ascii_lowercase().as_str() {
        "true" | "yes" => Ok(1.0),
        "false" | "no" | "unknown" => Ok(0.0),
        other => bail!("{other} is no number"),
    }
}

/// Labels whose fields exist.
fn labels(from: &Value, object: &Value) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for (label, path) in from.as_object().into_iter().flatten() {
        match get(path, object)? {
            Value::Null => {}
            Value::String(value) => {
                out.insert(label.clone(), value.clone());
            }
            other => {
                out.insert(label.clone(), other.to_string());
            }
        }
    }
    Ok(out)
}

/// The value at a path; null if missing. An empty path is the object itself.
fn get<'a>(path: &Value, object: &'a Value) -> Result<&'a Value> {
    let mut at = object;
    for part in list(path) {
        at = at.get(text(part)?).unwrap_or(&Value::Null);
    }
    Ok(at)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .with_context(|| format!("{value} is no text"))
}
