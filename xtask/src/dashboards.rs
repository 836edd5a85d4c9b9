//! The dashboards for Grafana in `config/components/dashboards`, from the tables in `xtask/dashboards`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::colours::{colour, set};
use crate::query::DASHBOARDS;

/// The dashboards, in the order of their links to each other.
const SHIPPED: [(&str, &str); 4] = [
    ("fleet", "Fleet"),
    ("workload", "Workload"),
    ("manager", "Manager"),
    ("agents", "Agents"),
];
/// Where the pages of the docs are.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs");
/// What a reader of a panel chooses.
const NARROWED: &str = r#"cluster=~"$cluster", job=~"$job", instance=~"$instance""#;
/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

/// A table of a dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dashboard {
    title: String,
    description: String,
    /// A metric of each target, which has the values of the variables.
    series: String,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    rows: Vec<Row>,
}

/// A variable besides those of every dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    name: String,
    label: String,
    /// The series with its values.
    of: String,
    /// The label with its values. Default: its name.
    r#as: Option<String>,
    /// Whether the reader chooses one value.
    #[serde(default)]
    one: bool,
}

/// Times that all panels mark.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotation {
    name: String,
    colour: String,
    expr: String,
}

/// Panels that answer a question. The first row has no title.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: Option<String>,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    help: String,
    kind: Kind,
    #[serde(default = "short")]
    unit: String,
    /// Columns and rows of the grid.
    w: Option<u64>,
    h: Option<u64>,
    /// Expressions by legend. `@` narrows to what the reader chooses; as a range it is Grafana's
    /// interval.
    queries: BTreeMap<String, String>,
    /// Colours from a value on.
    #[serde(default)]
    limits: Vec<(f64, String)>,
    /// The set of the series.
    colours: Option<String>,
    /// What a click on a series opens. In a table, the column that is a link.
    link: Option<String>,
    /// Alerts about what the panel shows.
    #[serde(default)]
    alerts: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Stat,
    Lines,
    Stack,
    Table,
    States,
}

fn short() -> String {
    "short".into()
}

/// Path from the root and content of the dashboards.
///
/// # Errors
/// A table does not parse, or names what does not exist.
pub fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let dashboards = SHIPPED.iter().map(|(name, _)| {
        let path = root.join("xtask/dashboards").join(format!("{name}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let dashboard: Dashboard = serde_saphyr::from_str(&text).context(*name)?;
        let path = Path::new(DASHBOARDS).join(format!("{name}.json"));
        Ok((path, lines(&dashboard.json(name).context(*name)?)))
    });
    dashboards.collect()
}

/// A line for each panel, variable and link: `kubectl apply` refuses a ConfigMap above 256 KiB, of
/// which indentation would take a third.
fn lines(dashboard: &Value) -> String {
    let fields = dashboard.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| {
        let Some(items) = value.as_array() else {
            return format!("\"{key}\": {value}");
        };
        let items: Vec<String> = items.iter().map(Value::to_string).collect();
        format!("\"{key}\": [\n{}\n]", items.join(",\n"))
    });
    format!("{{\n{}\n}}\n", fields.collect::<Vec<_>>().join(",\n"))
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// The query as Grafana sends it.
fn query(text: &str) -> String {
    text.replace("[@]", "[$__rate_interval]")
        .replace("@workload", r#"@namespace, name=~"$workload""#)
        .replace("@namespace", r#"@, namespace=~"$namespace""#)
        .replace('@', NARROWED)
}

/// A dashboard with the same data source and cluster.
fn address(board: &str) -> String {
    format!("/d/lockstep-{board}?${{datasource:queryparam}}&${{cluster:queryparam}}")
}

/// What a click on a series, or on a cell of a table, opens.
fn data_link(to: &str, own: &str, table: bool) -> Result<Value> {
    let part = if table {
        "__data.fields"
    } else {
        "__field.labels"
    };
    let label = |name: &str| format!("${{{part}.{name}}}");
    let (title, board, chosen): (_, _, &[(&str, &str)]) = match to {
        "agents" => ("Agents", "agents", &[]),
        "instance" => ("This process", own, &[("instance", "instance")]),
        "namespace" => (
            "Workloads of this namespace",
            "workload",
            &[("namespace", "namespace")],
        ),
        "name" => (
            "This workload",
            "workload",
            &[("namespace", "namespace"), ("workload", "name")],
        ),
        _ => anyhow::bail!("no link {to}"),
    };
    let mut url = address(board);
    for (variable, from) in chosen {
        let _ = write!(url, "&var-{variable}={}", label(from));
    }
    url.push_str("&${__url_time_range}");
    Ok(json!({"title": title, "url": url}))
}

impl Dashboard {
    fn json(&self, name: &str) -> Result<Value> {
        let annotations = self.annotations.iter().map(|a| {
            Ok(json!({
                "name": a.name, "enable": true, "iconColor": colour(&a.colour)?,
                "datasource": datasource(), "expr": query(&a.expr),
            }))
        });
        Ok(json!({
            "uid": format!("lockstep-{name}"),
            "title": self.title,
            "description": self.description,
            "tags": ["lockstep"],
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "schemaVersion": 39,
            "time": {"from": "now-6h", "to": "now"},
            "links": links(name),
            "annotations": {"list": annotations.collect::<Result<Vec<_>>>()?},
            "templating": {"list": self.variables()},
            "panels": self.panels(name)?,
        }))
    }

    fn variables(&self) -> Vec<Value> {
        let series = &self.series;
        let of = |labels: &str| format!("{series}{{{labels}}}");
        let mut all = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        })];
        for (name, label, from) in [
            ("cluster", "Cluster", series.clone()),
            ("job", "Job", of(r#"cluster=~"$cluster""#)),
            (
                "instance",
                "Instance",
                of(r#"cluster=~"$cluster", job=~"$job""#),
            ),
        ] {
            all.push(variable(
                name,
                label,
                &format!("label_values({from}, {name})"),
                false,
            ));
        }
        for choice in &self.choices {
            let values = choice.r#as.as_ref().unwrap_or(&choice.name);
            let query = format!("label_values({}, {values})", query(&choice.of));
            all.push(variable(&choice.name, &choice.label, &query, choice.one));
        }
        all
    }

    /// The panels with their places, from left to right and from top to bottom.
    fn panels(&self, name: &str) -> Result<Vec<Value>> {
        let (mut out, mut y) = (Vec::new(), 0);
        for row in &self.rows {
            if let Some(title) = &row.title {
                let place = json!({"x": 0, "y": y, "w": COLUMNS, "h": 1});
                let id = out.len() + 1;
                out.push(json!({
                    "type": "row", "id": id, "title": title, "collapsed": false,
                    "gridPos": place, "panels": [],
                }));
                y += 1;
            }
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                let (w, h) = panel.size();
                if x + w > COLUMNS {
                    (x, y, height) = (0, y + height, 0);
                }
                let mut json = panel.json(name).with_context(|| panel.title.clone())?;
                json["id"] = json!(out.len() + 1);
                json["gridPos"] = json!({"x": x, "y": y, "w": w, "h": h});
                out.push(json);
                (x, height) = (x + w, height.max(h));
            }
            y += height;
        }
        Ok(out)
    }
}

fn variable(name: &str, label: &str, query: &str, one: bool) -> Value {
    let mut variable = json!({
        "name": name, "label": label, "type": "query", "query": query,
        "datasource": datasource(), "refresh": 2, "sort": 1,
    });
    if !one {
        variable["multi"] = json!(true);
        variable["includeAll"] = json!(true);
        // Also series without the label.
        variable["allValue"] = json!(".*");
        variable["current"] = json!({"text": "All", "value": "$__all"});
    }
    variable
}

/// Links to the other dashboards and to the page for the person on call.
fn links(own: &str) -> Vec<Value> {
    let link = |title: &str, url: String, icon: &str, outside: bool| {
        json!({
            "title": title, "url": url, "type": "link", "icon": icon, "tooltip": "", "tags": [],
            "asDropdown": false, "includeVars": false, "keepTime": !outside, "targetBlank": outside,
        })
    };
    let others = SHIPPED.iter().filter(|(name, _)| *name != own);
    let mut all: Vec<Value> = others
        .map(|(name, title)| {
            let namespace = if (own, *name) == ("workload", "fleet") {
                "&${namespace:queryparam}"
            } else {
                ""
            };
            link(title, address(name) + namespace, "dashboard", false)
        })
        .collect();
    all.push(link("On call", format!("{DOCS}/oncall.md"), "doc", true));
    all
}

impl Panel {
    fn size(&self) -> (u64, u64) {
        let (w, h) = match self.kind {
            Kind::Stat => (3, 4),
            _ => (12, 8),
        };
        (self.w.unwrap_or(w), self.h.unwrap_or(h))
    }

    fn json(&self, board: &str) -> Result<Value> {
        let kind = match self.kind {
            Kind::Stat => "stat",
            Kind::Lines | Kind::Stack => "timeseries",
            Kind::Table => "table",
            Kind::States => "state-timeline",
        };
        let mut panel = json!({
            "type": kind, "title": self.title, "description": self.help,
            "datasource": datasource(), "targets": self.targets(),
            "fieldConfig": {"defaults": self.defaults(board)?, "overrides": self.overrides(board)?},
        });
        match self.kind {
            Kind::Stat => {
                panel["options"] = json!({
                    "colorMode": "background", "graphMode": "none", "textMode": "auto",
                    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                });
            }
            Kind::Table => {
                panel["transformations"] = json!([
                    {"id": "organize", "options": {"excludeByName": {"Time": true}}},
                ]);
            }
            Kind::States => {
                panel["options"] =
                    json!({"mergeValues": true, "rowHeight": 0.8, "showValue": "never"});
            }
            Kind::Lines | Kind::Stack => {}
        }
        if !self.alerts.is_empty() {
            let runbook = |alert: &String| {
                let url = format!("{DOCS}/runbooks/{alert}.md");
                json!({"title": format!("Runbook {alert}"), "url": url, "targetBlank": true})
            };
            panel["links"] = self.alerts.iter().map(runbook).collect();
        }
        Ok(panel)
    }

    fn targets(&self) -> Vec<Value> {
        let now = matches!(self.kind, Kind::Stat | Kind::Table);
        let format = if self.kind == Kind::Table {
            "table"
        } else {
            "time_series"
        };
        let queries = self.queries.iter().zip('A'..);
        let target = |((legend, expr), id): ((&String, &String), char)| {
            json!({
                "refId": id.to_string(), "expr": query(expr), "legendFormat": legend,
                "datasource": datasource(), "format": format, "instant": now, "range": !now,
            })
        };
        queries.map(target).collect()
    }

    fn defaults(&self, board: &str) -> Result<Value> {
        let mut defaults = json!({"unit": self.unit, "min": 0, "custom": {}});
        match self.kind {
            Kind::Lines => defaults["custom"] = json!({"fillOpacity": 0}),
            Kind::Stack => {
                defaults["custom"] =
                    json!({"fillOpacity": 70, "lineWidth": 0, "stacking": {"mode": "normal"}});
            }
            Kind::States => {
                defaults["custom"] = json!({"fillOpacity": 80, "lineWidth": 0});
                defaults["color"] = json!({"mode": "thresholds"});
                defaults["mappings"] = json!([{
                    "type": "value", "options": {"0": {"text": "False"}, "1": {"text": "True"}},
                }]);
            }
            Kind::Stat | Kind::Table => {}
        }
        if !self.limits.is_empty() {
            let mut steps = Vec::new();
            for (from, name) in &self.limits {
                // The first holds below all others.
                let from = if steps.is_empty() {
                    Value::Null
                } else {
                    json!(from)
                };
                steps.push(json!({"color": colour(name)?, "value": from}));
            }
            defaults["thresholds"] = json!({"mode": "absolute", "steps": steps});
            match self.kind {
                Kind::Lines => defaults["custom"]["thresholdsStyle"] = json!({"mode": "dashed"}),
                _ => defaults["color"] = json!({"mode": "thresholds"}),
            }
        }
        if let Some(to) = self.link.as_ref().filter(|_| self.kind != Kind::Table) {
            defaults["links"] = json!([data_link(to, board, false)?]);
        }
        Ok(defaults)
    }

    /// What differs by series: the colours of the set, and the column that is a link.
    fn overrides(&self, board: &str) -> Result<Vec<Value>> {
        let (mut out, mut words) = (Vec::new(), Map::new());
        for (series, colour) in set(self.colours.as_deref())? {
            let property = match self.kind {
                Kind::Table => {
                    words.insert(series.into(), json!({"text": series, "color": colour}));
                    continue;
                }
                Kind::States => json!({"id": "thresholds", "value": {"mode": "absolute", "steps": [
                    {"color": "transparent", "value": null}, {"color": colour, "value": 1},
                ]}}),
                _ => json!({"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}),
            };
            out.push(by_name(series, &[property]));
        }
        if !words.is_empty() {
            let cell = json!({"id": "custom.cellOptions", "value": {"type": "color-text"}});
            let colours = json!({"id": "mappings", "value": [{"type": "value", "options": words}]});
            out.push(by_name("phase", &[cell, colours]));
        }
        if let Some(column) = self.link.as_ref().filter(|_| self.kind == Kind::Table) {
            let links = json!([data_link(column, board, true)?]);
            out.push(by_name(column, &[json!({"id": "links", "value": links})]));
        }
        Ok(out)
    }
}

fn by_name(series: &str, properties: &[Value]) -> Value {
    json!({"matcher": {"id": "byName", "options": series}, "properties": properties})
}
