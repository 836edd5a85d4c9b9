//! The configuration of kube-state-metrics reads existing fields. Its metrics match the metrics of
//! the manager, under other names.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;

use lockstep_api::workload::Phase;
use lockstep_sim::phases::in_phase;
use serde_json::{Value, json};
use xtask::custom_resource_state::{FAMILIES, PREFIX, Series, config, render};
use xtask::metrics;

/// Schema of the version in the configuration.
fn schema() -> Value {
    let wanted = &config()["spec"]["resources"][0]["groupVersionKind"];
    let definitions = lockstep_api::crds::all();
    let definitions = definitions.iter().map(|d| serde_json::to_value(d).unwrap());
    let named = |d: &Value| {
        d["spec"]["names"]["kind"] == wanted["kind"] && d["spec"]["group"] == wanted["group"]
    };
    let definition = definitions.into_iter().find(named).expect("a definition");
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let version = versions.iter().find(|v| v["name"] == wanted["version"]);
    let mut schema = version.expect("a version")["schema"]["openAPIV3Schema"].clone();
    // The API server knows more of the metadata than the schema has.
    schema["properties"]["metadata"] =
        json!({"properties": {"name": {"type": "string"}, "namespace": {"type": "string"}}});
    schema
}

/// The schema at a path, or an error if the path does not exist.
fn at<'a>(schema: &'a Value, path: &Value) -> Result<&'a Value, String> {
    let parts = path.as_array().ok_or_else(|| format!("{path}: no path"))?;
    parts.iter().try_fold(schema, |schema, part| {
        let field = &schema["properties"][part.as_str().unwrap_or_default()];
        (!field.is_null())
            .then_some(field)
            .ok_or_else(|| format!("{path}: there is no {part}"))
    })
}

fn mistakes(config: &Value, schema: &Value) -> Vec<String> {
    let resource = &config["spec"]["resources"][0];
    let mut out = Vec::new();
    let mut labels = |from: &Value, schema: &Value| {
        for path in from
            .as_object()
            .into_iter()
            .flat_map(|paths| paths.values())
        {
            match at(schema, path) {
                Err(mistake) => out.push(mistake),
                Ok(field) if field["type"] != "string" => {
                    out.push(format!("{path}: a label that is no text"));
                }
                Ok(_) => {}
            }
        }
    };
    labels(&resource["labelsFromPath"], schema);
    let mut values = Vec::new();
    for metric in resource["metrics"].as_array().unwrap() {
        let each = &metric["each"];
        match each["type"].as_str().unwrap() {
            "Info" => labels(&each["info"]["labelsFromPath"], schema),
            "StateSet" => values.extend(state_set(&each["stateSet"], schema)),
            _ => {
                let gauge = &each["gauge"];
                match at(schema, &gauge["path"]) {
                    Err(mistake) => values.push(mistake),
                    Ok(field) if field["type"] == "array" => {
                        labels(&gauge["labelsFromPath"], &field["items"]);
                        values.extend(number(&field["items"], &gauge["valueFrom"]));
                    }
                    Ok(field) => values.extend(number(field, &json!([]))),
                }
            }
        }
    }
    out.extend(values);
    out
}

/// Exactly the states of the schema.
fn state_set(source: &Value, schema: &Value) -> Option<String> {
    let field = match at(schema, &source["path"]) {
        Ok(field) => field,
        Err(mistake) => return Some(mistake),
    };
    let set = |list: &Value| -> BTreeSet<String> {
        let texts = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let (listed, known) = (set(&source["list"]), set(&field["enum"]));
    (listed != known).then(|| format!("{}: {listed:?} instead of {known:?}", source["path"]))
}

/// Numbers, and a condition's status, which maps to 0 and 1.
fn number(schema: &Value, path: &Value) -> Option<String> {
    match at(schema, path) {
        Err(mistake) => Some(mistake),
        Ok(field) => {
            let is_status = field["enum"] == json!(["True", "False", "Unknown"]);
            (field["type"] != "integer" && !is_status).then(|| format!("{path}: no number"))
        }
    }
}

#[test]
fn every_path_leads_to_a_field_of_the_definition_and_states_are_those_of_its_enum() {
    assert_eq!(mistakes(&config(), &schema()), Vec::<String>::new());
}

#[test]
fn a_path_that_leads_nowhere_and_a_state_that_is_missing_are_found() {
    let schema = schema();
    for (at, value, mistake) in [
        (
            "labelsFromPath/name",
            json!(["metadata", "nome"]),
            "there is no \"nome\"",
        ),
        (
            "metrics/0/each/info/labelsFromPath/phase",
            json!(["status", "attempt"]),
            "no text",
        ),
        (
            "metrics/1/each/stateSet/list/0",
            json!("Waiting"),
            "instead of",
        ),
        (
            "metrics/2/each/gauge/labelsFromPath/reason",
            json!(["why"]),
            "there is no \"why\"",
        ),
        (
            "metrics/3/each/gauge/valueFrom",
            json!(["name"]),
            "no number",
        ),
        (
            "metrics/6/each/gauge/path",
            json!(["status", "restarts"]),
            "no number",
        ),
    ] {
        let mut config = config();
        let place = format!("/spec/resources/0/{at}");
        *config.pointer_mut(&place).expect(at) = value;
        let found = mistakes(&config, &schema);
        assert!(found.iter().any(|m| m.contains(mistake)), "{at}: {found:?}");
    }
}

#[test]
fn each_metric_of_a_workload_is_there_under_the_names_of_both_sources() {
    let (ours, theirs) = ("lockstep_workload", PREFIX);
    let names = |prefix: &str| -> BTreeSet<String> {
        let all = metrics::all().map(|m| m.name);
        let all = all.chain(FAMILIES.iter().map(|f| f.metric.name));
        let all = all.filter_map(|name| name.strip_prefix(prefix));
        all.filter(|rest| rest.starts_with('_'))
            .map(str::to_owned)
            .collect()
    };
    let mut also = names(theirs);
    // In the manager's metrics the phase is a label of the info metric.
    assert!(also.remove("_status_phase"));
    // Metrics that count workloads, not single ones.
    let mut own = names(ours);
    assert!(own.remove("_conditions"));
    assert_eq!(own, also);
}

/// Value of the only series with this name and these labels.
fn value(series: &[Series], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |(is, all, _): &&Series| {
        let wanted =
            |(label, value): &(&str, &str)| all.get(*label).map(String::as_str) == Some(value);
        is.strip_prefix(PREFIX) == Some(name) && labels.iter().all(wanted)
    };
    let mut found = series.iter().filter(has).map(|(_, _, value)| *value);
    let value = found.next();
    assert_eq!(found.next(), None, "{name} {labels:?} is there twice");
    value
}

#[test]
fn a_workload_in_each_phase_shows_its_phase_its_conditions_and_its_members() {
    for phase in Phase::ALL {
        let workload = in_phase(phase).workload().expect("a workload");
        let status = workload.status.clone().expect("a status");
        let mut object = serde_json::to_value(&workload).unwrap();
        object["apiVersion"] = json!("training.lockstep.dev/v1alpha1");
        object["kind"] = json!("TrainingWorkload");
        let series = render(&config(), &object).unwrap();
        for (name, labels, _) in &series {
            let metric = metrics::of_series(name).unwrap_or_else(|| panic!("{name}"));
            let own = labels.keys().map(String::as_str).collect::<BTreeSet<_>>();
            let documented = metric.labels.iter().copied().collect::<BTreeSet<_>>();
            assert!(own.is_subset(&documented), "{name}: {own:?}");
        }
        let shown = |name: &str, labels: &[(&str, &str)]| value(&series, name, labels);
        let word = phase.as_str();
        let named = [
            ("namespace", "ns"),
            ("name", "w"),
            ("phase", word),
            ("reason", &status.reason),
        ];
        assert_eq!(shown("_info", &named), Some(1.0), "{series:#?}");
        for other in Phase::ALL {
            let expected = f64::from(u8::from(other == phase));
            assert_eq!(
                shown("_status_phase", &[("phase", other.as_str())]),
                Some(expected)
            );
        }
        for c in &status.conditions {
            let labels = [
                ("condition", c.type_.as_str()),
                ("status", c.status.as_str()),
            ];
            let expected = f64::from(u8::from(c.status == true.into()));
            assert_eq!(shown("_status_condition", &labels), Some(expected), "{c:?}");
        }
        let group = &status.groups[0];
        for (name, number) in [
            ("_ready", group.ready),
            ("_succeeded", group.succeeded),
            ("_members", group.desired),
        ] {
            assert_eq!(
                shown(name, &[("group", "g")]),
                Some(f64::from(number)),
                "{word} {name}"
            );
        }
        for (name, number) in [
            ("_restarts", status.restarts.total),
            ("_attempt", status.attempt),
            ("_accelerators", status.accounting.accelerators),
            (
                "_lost_accelerator_seconds",
                status.accounting.lost_accelerator_seconds,
            ),
        ] {
            assert_eq!(shown(name, &[]), Some(number as f64), "{word} {name}");
        }
    }
}

#[test]
fn a_workload_without_status_shows_its_names_and_zeros() {
    let object = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": "w", "namespace": "ns"}, "spec": {"priorityClassName": "high"}});
    let series = render(&config(), &object).unwrap();
    assert_eq!(
        value(&series, "_info", &[("priority_class", "high")]),
        Some(1.0)
    );
    assert_eq!(value(&series, "_attempt", &[("name", "w")]), Some(0.0));
    assert_eq!(value(&series, "_status_phase", &[]), None);
    assert_eq!(value(&series, "_ready", &[]), None);
}
