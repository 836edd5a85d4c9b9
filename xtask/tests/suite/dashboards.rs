//! Dashboards have units, thresholds, colours and links, and every alert leads to one.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xtask::metrics::OF_THE_SCRAPE;
use xtask::query::{annotation_queries, dashboards, rules};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The panels of a dashboard without titles of rows.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    array(&dashboard["panels"]).filter(|panel| panel["type"] != "row")
}

#[test]
fn the_component_includes_every_dashboard() {
    let component = read("config/components/dashboards/kustomization.yaml");
    for name in dashboards(&root()).unwrap().keys() {
        assert!(component.contains(&format!("  - {name}.json\n")), "{name}");
    }
}

/// `kubectl apply` writes the whole ConfigMap into an annotation of at most 256 KiB.
#[test]
fn the_dashboards_fit_into_an_annotation_of_their_config_map() {
    let folder = root().join("config/components/dashboards");
    let files = xtask::read_folder(&folder).unwrap();
    let escaped: usize = files.iter().map(|(_, t)| json!(t).to_string().len()).sum();
    assert!(escaped < 200 * 1024, "{escaped} bytes");
}

#[test]
fn every_panel_has_a_description_a_unit_and_a_place_of_its_own() {
    for (name, dashboard) in dashboards(&root()).unwrap() {
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in array(&dashboard["panels"]) {
            let title = format!("{name} / {}", panel["title"]);
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(x < 24 && cells.insert((x, y)), "{title}");
                }
            }
        }
        for panel in panels(&dashboard) {
            let title = format!("{name} / {}", panel["title"]);
            let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
            for text in [text(&panel["title"]), text(&panel["description"]), unit] {
                assert!(!text.is_empty(), "{title}");
            }
            // Accelerator-seconds are no elapsed time.
            let lost = panel["targets"].to_string().contains("accelerator_seconds");
            assert!(!["s", "short"].contains(&unit) || !lost, "{title}");
        }
    }
}

#[test]
fn figures_come_first_and_each_has_a_value_from_which_it_is_good_or_bad() {
    for (name, dashboard) in dashboards(&root()).unwrap() {
        let mut rows = dashboard["panels"].as_array().unwrap().iter();
        let before = rows.position(|panel| panel["type"] == "row").unwrap();
        let first: Vec<&Value> = array(&dashboard["panels"]).take(before).collect();
        let figures = first.iter().filter(|panel| panel["type"] == "stat").count();
        assert!(figures >= 4, "{name}");
        assert!(
            first.iter().all(|panel| panel["gridPos"]["y"] == 0),
            "{name}"
        );
        for panel in panels(&dashboard).filter(|panel| panel["type"] == "stat") {
            let steps = &panel["fieldConfig"]["defaults"]["thresholds"]["steps"];
            let steps: Vec<&Value> = array(steps).collect();
            assert!(steps.len() > 1, "{name} / {}", panel["title"]);
            assert!(steps[0]["value"].is_null() && steps[1]["value"].is_number());
        }
        for row in array(&dashboard["panels"]).filter(|panel| panel["type"] == "row") {
            assert!(text(&row["title"]).ends_with('?'), "{name} / {row}");
        }
    }
}

/// Words of the table in CONTRIBUTING.md that a text must not have.
fn wrong_words() -> Vec<String> {
    let page = read("CONTRIBUTING.md");
    let (_, table) = page.split_once("| not | but |\n|---|---|\n").unwrap();
    let rows = table.lines().map_while(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .flat_map(|cell| cell.split(", "))
        .map(str::to_owned)
        .collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let text = text
        .to_lowercase()
        .replace(|c: char| !c.is_alphanumeric(), " ");
    format!(" {text} ").contains(&format!(" {word} "))
}

#[test]
fn titles_and_descriptions_have_no_word_that_contributing_replaces() {
    let wrong = wrong_words();
    assert!(
        wrong.iter().any(|w| w == "in hand") && wrong.len() > 15,
        "{wrong:?}"
    );
    for (name, dashboard) in dashboards(&root()).unwrap() {
        for panel in array(&dashboard["panels"]) {
            for text in [text(&panel["title"]), text(&panel["description"])] {
                let found = wrong.iter().find(|word| has_word(text, word));
                assert_eq!(found, None, "{name}: {text}");
            }
        }
    }
}

/// A sum of quantiles is a quantile of nothing.
#[test]
fn no_panel_stacks_quantiles() {
    for (name, dashboard) in dashboards(&root()).unwrap() {
        for panel in panels(&dashboard) {
            let stacked = !panel["fieldConfig"]["defaults"]["custom"]["stacking"].is_null();
            let quantiles = panel["targets"].to_string().contains("quantile");
            assert!(!(stacked && quantiles), "{name} / {}", panel["title"]);
        }
    }
}

/// The colours that overrides of all dashboards give to series and words.
fn colours() -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut add = |series: &str, colour: &Value| {
        let colours = out.entry(series.to_owned()).or_default();
        colours.insert(text(colour).to_owned());
    };
    for dashboard in dashboards(&root()).unwrap().values() {
        let overrides = panels(dashboard).flat_map(|p| array(&p["fieldConfig"]["overrides"]));
        for changed in overrides {
            let series = text(&changed["matcher"]["options"]);
            for property in array(&changed["properties"]) {
                let value = &property["value"];
                match text(&property["id"]) {
                    "color" => add(series, &value["fixedColor"]),
                    "thresholds" => add(series, &value["steps"][1]["color"]),
                    "mappings" => {
                        let words = value[0]["options"].as_object().unwrap();
                        words.iter().for_each(|(word, v)| add(word, &v["color"]));
                    }
                    _ => {}
                }
            }
        }
    }
    out
}

/// The values of `name: 'value'` or `--name: value;` in a text.
fn pairs(text: &str, end: &str) -> BTreeMap<String, String> {
    let lines = text.lines().flat_map(|line| line.split(end));
    let pairs = lines.filter_map(|line| line.trim().split_once(": "));
    let plain = |part: &str| part.trim_matches(|c: char| " -'".contains(c)).to_owned();
    pairs
        .map(|(name, value)| (plain(name), plain(value)))
        .collect()
}

#[test]
fn a_state_has_one_colour_and_it_is_that_of_the_page_of_kubectl_lockstep() {
    let colours = colours();
    for (series, colours) in &colours {
        assert_eq!(colours.len(), 1, "{series}: {colours:?}");
    }
    let css = read("operator/cli/page/style.css");
    let css = pairs(css.split('}').next().unwrap(), ";");
    let script = read("operator/cli/page/ui.js");
    let (_, phases) = script.split_once("const PHASES = {").unwrap();
    let mut expected = pairs(phases.split("};").next().unwrap(), ",");
    assert!(expected.len() > 8, "{expected:?}");
    for state in ["leaving", "reserved", "free", "unusable"] {
        expected.insert(state.into(), state.into());
    }
    expected.insert("held".into(), "running".into());
    for (series, class) in expected {
        let shown = colours.get(&series).and_then(|c| c.first());
        assert_eq!(shown, css.get(&class), "{series}: {class}");
    }
}

/// Texts anywhere in a value that are paths of dashboards.
fn addresses(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => {
            let found = text.match_indices("/d/").map(|(at, _)| &text[at..]);
            let end = |found: &str| found.find("{{ e").unwrap_or(found.len());
            found.map(|found| &found[..end(found)]).collect()
        }
        Value::Array(items) => items.iter().flat_map(addresses).collect(),
        Value::Object(fields) => fields.values().flat_map(addresses).collect(),
        _ => Vec::new(),
    }
}

fn variables(dashboard: &Value) -> BTreeSet<&str> {
    let list = array(&dashboard["templating"]["list"]);
    list.map(|variable| text(&variable["name"])).collect()
}

/// The dashboard of an address and the variables that it sets.
fn target<'a>(all: &'a BTreeMap<String, Value>, address: &str) -> (&'a Value, Vec<String>) {
    let (uid, query) = address[3..].split_once('?').unwrap_or((&address[3..], ""));
    let found = all.values().find(|dashboard| dashboard["uid"] == uid);
    let set = query.split('&').filter_map(|part| {
        let name = part.strip_prefix("var-")?.split('=').next();
        let passed = || part.strip_prefix("${")?.strip_suffix(":queryparam}");
        name.or_else(passed).map(str::to_owned)
    });
    (found.unwrap_or_else(|| panic!("{address}")), set.collect())
}

#[test]
fn links_open_dashboards_with_variables_that_they_have() {
    let all = dashboards(&root()).unwrap();
    for (name, dashboard) in &all {
        let found = addresses(dashboard);
        let distinct: BTreeSet<&str> = found
            .iter()
            .map(|address| text(&target(&all, address).0["uid"]))
            .collect();
        assert!(distinct.len() >= all.len() - 1, "{name}: {distinct:?}");
        for address in found {
            let (to, set) = target(&all, address);
            for variable in set {
                assert!(variables(to).contains(&*variable), "{name}: {address}");
            }
        }
    }
}

#[test]
fn every_alert_opens_a_dashboard_with_a_panel_that_links_its_runbook() {
    let all = dashboards(&root()).unwrap();
    for rule in rules(&root())
        .unwrap()
        .iter()
        .filter(|r| !r["alert"].is_null())
    {
        let name = text(&rule["alert"]);
        let found = addresses(&rule["annotations"]["dashboard_url"]);
        assert!(!found.is_empty(), "{name}");
        for address in found {
            let (dashboard, set) = target(&all, address);
            for variable in set {
                assert!(
                    variables(dashboard).contains(&*variable),
                    "{name}: {variable}"
                );
                let label = if variable == "workload" {
                    "workload"
                } else {
                    &*variable
                };
                let grouped = text(&rule["expr"]).split("by (").skip(1);
                let mut grouped = grouped.filter_map(|g| g.split(')').next());
                let has = grouped.any(|labels| labels.split(", ").any(|l| l == label));
                assert!(has, "{name} has no label {label}");
            }
            let mut links = panels(dashboard).flat_map(|panel| array(&panel["links"]));
            let runbook = &rule["annotations"]["runbook_url"];
            assert!(
                links.any(|link| link["url"] == *runbook),
                "{name}: {address}"
            );
        }
    }
    let runbooks = all
        .values()
        .flat_map(panels)
        .flat_map(|p| array(&p["links"]));
    for link in runbooks {
        let (_, page) = text(&link["url"]).split_once("/main/").unwrap();
        assert!(root().join(page).is_file(), "{page}");
    }
}

#[test]
fn the_fleet_and_a_workload_mark_restarts_and_preemptions() {
    let all = dashboards(&root()).unwrap();
    for name in ["fleet", "workload"] {
        assert_eq!(annotation_queries(&all[name]).len(), 2, "{name}");
    }
}

/// Names of the variables in a text of a dashboard.
fn variables_in(text: &str) -> BTreeSet<&str> {
    let names = text.split('$').skip(1).map(|rest| {
        let rest = rest.trim_start_matches('{');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    names.collect()
}

#[test]
fn the_reader_chooses_data_source_cluster_job_and_instance_of_every_panel() {
    let chosen = json!({"type": "prometheus", "uid": "${datasource}"});
    for (name, dashboard) in dashboards(&root()).unwrap() {
        for panel in panels(&dashboard) {
            let mut all = array(&panel["targets"]).chain([panel]);
            assert!(all.all(|part| part["datasource"] == chosen), "{name}");
        }
        let list: Vec<&Value> = array(&dashboard["templating"]["list"]).collect();
        let named = |name: &str| list.iter().find(|v| v["name"] == name);
        for used in variables_in(&dashboard.to_string()) {
            let known = used.starts_with("__") || named(used).is_some();
            assert!(known, "{name}: ${used} is not defined");
        }
        for label in OF_THE_SCRAPE {
            let variable = named(label).unwrap();
            let several = variable["multi"] == true && variable["includeAll"] == true;
            // `.*` also matches series without the label.
            assert!(several && variable["allValue"] == ".*", "{name}: {label}");
        }
    }
}
