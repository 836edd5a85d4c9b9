//! Types of dashboards, and their Grafana format.

use serde_json::{Value, json};

/// Dashboard schema of Grafana 11 and later.
const SCHEMA_VERSION: u32 = 39;
/// Columns of Grafana's grid.
const GRID: u32 = 24;
/// Height of panels in grid rows; `LOW` for rows with a number.
const HEIGHT: u32 = 8;
const LOW: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Dashboard {
    /// File name and stable id.
    pub name: &'static str,
    pub title: &'static str,
    /// Questions that the dashboard answers.
    pub description: &'static str,
    /// A series that each shown process exports. Its labels give the choices for cluster, job and
    /// instance.
    pub scraped: &'static str,
    /// Variables before cluster, job and instance.
    pub first: &'static [Variable],
    /// Variables after cluster, job and instance.
    pub more: &'static [Variable],
    /// Panels, left to right, then down.
    pub panels: &'static [Panel],
}

#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name, as queries use it after `$`.
    pub name: &'static str,
    /// Displayed name.
    pub label: &'static str,
    pub choice: Choice,
}

/// Choices of a variable. Earlier variables narrow the series.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Several values of a label, or all.
    Some {
        of: &'static str,
        label: &'static str,
    },
    /// One value of a label.
    One {
        of: &'static str,
        label: &'static str,
    },
    /// One of these values.
    Fixed(&'static [&'static str]),
}

/// Labels that identify a scrape target. Every dashboard has them as variables, and every query is
/// narrowed by them. Prometheus itself sets no `cluster`: if the label is missing, the choice is
/// empty, and `.*` matches.
pub const SCRAPED: [(&str, &str); 3] = [
    ("cluster", "Cluster"),
    ("job", "Job"),
    ("instance", "Instance"),
];
/// Placeholder for their matchers in the queries of the table.
const NARROWED: &str = "$scraped";

fn matcher(label: &str, variable: &str) -> String {
    format!(r#"{label}=~"${variable}""#)
}

/// Selects namespaces with workloads.
pub const NAMESPACE: Variable = Variable {
    name: "namespace",
    label: "Namespace",
    choice: Choice::Some {
        of: "lockstep_workload_conditions",
        label: "namespace",
    },
};

#[derive(Clone, Copy, Debug)]
pub struct Panel {
    pub title: &'static str,
    /// Content and interpretation.
    pub description: &'static str,
    /// Unit, by its Grafana id.
    pub unit: &'static str,
    pub kind: Kind,
    /// Width in columns of 24.
    pub width: u32,
    /// Queries and legends. In every selector, `$scraped` stands for the matchers of cluster, job
    /// and instance.
    pub queries: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines over time.
    Lines,
    /// Stacked lines over time.
    Stacked,
    /// Current value.
    Number,
    /// Current values with their labels.
    Table,
    /// One row per series, with the times at which it is 1.
    Timeline,
}

impl Dashboard {
    /// All variables except the data source, in order.
    pub fn variables(&self) -> Vec<Variable> {
        let scraped = SCRAPED.map(|(name, label)| Variable {
            name,
            label,
            choice: Choice::Some {
                of: self.scraped,
                label: name,
            },
        });
        [self.first, &scraped, self.more].concat()
    }

    /// Groups panels into rows.
    fn rows(&self) -> Vec<&'static [Panel]> {
        let mut rows = Vec::new();
        let (mut start, mut width) = (0, 0);
        for (at, panel) in self.panels.iter().enumerate() {
            if width + panel.width > GRID {
                rows.push(&self.panels[start..at]);
                (start, width) = (at, 0);
            }
            width += panel.width;
        }
        rows.push(&self.panels[start..]);
        rows
    }

    /// The dashboard in Grafana's import format.
    pub fn json(&self) -> Value {
        let mut y = 0;
        let mut panels = Vec::new();
        for row in self.rows() {
            let low = row.iter().any(|panel| panel.kind == Kind::Number);
            let height = if low { LOW } else { HEIGHT };
            let mut x = 0;
            for panel in row {
                let mut json = panel.json();
                json["id"] = json!(panels.len() + 1);
                json["gridPos"] = json!({"x": x, "y": y, "w": panel.width, "h": height});
                panels.push(json);
                x += panel.width;
            }
            y += height;
        }
        let source = json!({"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"});
        let own = self.variables();
        let own = own.iter().enumerate().map(|(at, v)| v.json(&own[..at]));
        let variables: Vec<Value> = std::iter::once(source).chain(own).collect();
        json!({
            "uid": format!("lockstep-{}", self.name),
            "title": self.title,
            "description": self.description,
            "tags": ["lockstep"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": variables},
            "panels": panels,
        })
    }
}

impl Variable {
    /// The series of the variable's values, narrowed by the variables `before`; `None` for a fixed
    /// list.
    pub fn series(&self, before: &[Variable]) -> Option<String> {
        let (Choice::Some { of, .. } | Choice::One { of, .. }) = self.choice else {
            return None;
        };
        let matchers: Vec<String> = before
            .iter()
            .filter_map(|v| match v.choice {
                Choice::Some { label, .. } | Choice::One { label, .. } => {
                    Some(matcher(label, v.name))
                }
                Choice::Fixed(_) => None,
            })
            .collect();
        Some(match matchers.as_slice() {
            [] => of.to_owned(),
            some => format!("{of}{{{}}}", some.join(", ")),
        })
    }

    fn json(&self, before: &[Variable]) -> Value {
        let series = self.series(before).unwrap_or_default();
        let mut json = match self.choice {
            Choice::Fixed(values) => {
                let first = values.first().copied().unwrap_or_default();
                json!({"type": "custom", "query": values.join(","), "current": {"text": first, "value": first}})
            }
            Choice::Some { label, .. } => {
                let mut json = values_of(&series, label);
                json["multi"] = json!(true);
                json["includeAll"] = json!(true);
                json["allValue"] = json!(".*");
                json["current"] = json!({"text": "All", "value": "$__all"});
                json
            }
            Choice::One { label, .. } => values_of(&series, label),
        };
        json["name"] = json!(self.name);
        json["label"] = json!(self.label);
        json
    }
}

/// A variable with values from Prometheus.
fn values_of(series: &str, label: &str) -> Value {
    json!({
        "type": "query", "query": format!("label_values({series}, {label})"),
        "datasource": source(), "refresh": 2, "sort": 1,
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Panel {
    /// Queries in Grafana's format, with their legends.
    pub fn asks(&self) -> Vec<(String, &'static str)> {
        let matchers = SCRAPED.map(|(label, _)| matcher(label, label)).join(", ");
        let queries = self.queries.iter();
        queries
            .map(|(query, legend)| (query.replace(NARROWED, &matchers), *legend))
            .collect()
    }

    fn json(&self) -> Value {
        let now = matches!(self.kind, Kind::Number | Kind::Table);
        let queries = self.asks().into_iter().zip('A'..='Z');
        let targets: Vec<Value> = queries
            .map(|((expr, legend), id)| {
                json!({"refId": id.to_string(), "expr": expr, "legendFormat": legend,
                    "datasource": source(), "instant": now, "range": !now,
                    "format": if self.kind == Kind::Table { "table" } else { "time_series" }})
            })
            .collect();
        let (kind, custom) = match self.kind {
            Kind::Lines => ("timeseries", json!({"fillOpacity": 0})),
            Kind::Stacked => (
                "timeseries",
                json!({"fillOpacity": 40, "stacking": {"mode": "normal"}}),
            ),
            Kind::Number => ("stat", json!({})),
            Kind::Table => ("table", json!({})),
            Kind::Timeline => ("state-timeline", json!({"fillOpacity": 80, "lineWidth": 0})),
        };
        let mut panel = json!({
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": source(),
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0, "custom": custom}, "overrides": []},
            "targets": targets,
        });
        if self.kind == Kind::Timeline {
            panel["options"] = json!({"showValue": "never", "mergeValues": true, "rowHeight": 0.8});
            panel["fieldConfig"]["defaults"]["color"] = json!({"mode": "thresholds"});
            panel["fieldConfig"]["defaults"]["thresholds"] = json!({"mode": "absolute", "steps": [
                {"value": null, "color": "transparent"}, {"value": 1, "color": "blue"}]});
            panel["fieldConfig"]["defaults"]["mappings"] = json!([{"type": "value", "options": {
                "0": {"text": "False"}, "1": {"text": "True"}}}]);
        }
        if self.kind == Kind::Table {
            panel["transformations"] =
                json!([{"id": "organize", "options": {"excludeByName": {"Time": true}}}]);
        }
        panel
    }
}
