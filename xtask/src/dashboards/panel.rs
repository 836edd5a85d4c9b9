//! What a dashboard is, and how Grafana reads it.

use serde_json::{Value, json};

/// Schema of dashboards that Grafana 11 and later read.
const SCHEMA_VERSION: u32 = 39;
/// Columns of Grafana's grid.
const GRID: u32 = 24;
/// Height of panels in rows of the grid, and of those that stand beside a number.
const HEIGHT: u32 = 8;
const LOW: u32 = 4;

/// A dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Dashboard {
    /// Name of the file and stable id.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// What it answers.
    pub description: &'static str,
    /// A series of which each process that is shown has one: whose clusters, jobs and instances there
    /// are to choose from.
    pub scraped: &'static str,
    /// What the reader chooses before these.
    pub first: &'static [Variable],
    /// What the reader chooses after these.
    pub more: &'static [Variable],
    /// Panels, from the left to the right and down.
    pub panels: &'static [Panel],
}

/// What the reader of a dashboard chooses.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name, as queries have it after `$`.
    pub name: &'static str,
    /// What the reader sees.
    pub label: &'static str,
    /// What there is to choose from.
    pub choice: Choice,
}

/// What there is to choose from. Series are narrowed by what was chosen before.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Some of the values of a label, or all.
    Some {
        /// The series.
        of: &'static str,
        /// The label.
        label: &'static str,
    },
    /// One value of a label.
    One {
        /// The series.
        of: &'static str,
        /// The label.
        label: &'static str,
    },
    /// One of these.
    Fixed(&'static [&'static str]),
}

/// Labels by which Prometheus knows what it has scraped. Every dashboard lets the reader choose, and
/// every query is narrowed to what was chosen. Prometheus itself sets no `cluster`: where nothing
/// does, the choice is empty, and `.*` matches the series without it.
pub const SCRAPED: [(&str, &str); 3] = [
    ("cluster", "Cluster"),
    ("job", "Job"),
    ("instance", "Instance"),
];
/// What stands for them in the queries of the table.
const NARROWED: &str = "$scraped";

/// The matcher that narrows a query by a variable.
fn matcher(label: &str, variable: &str) -> String {
    format!(r#"{label}=~"${variable}""#)
}

/// Chooses among the namespaces with workloads.
pub const NAMESPACE: Variable = Variable {
    name: "namespace",
    label: "Namespace",
    choice: Choice::Some {
        of: "lockstep_workload_conditions",
        label: "namespace",
    },
};

/// A panel.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// Title.
    pub title: &'static str,
    /// What it shows, and what to make of it.
    pub description: &'static str,
    /// Unit, by Grafana's name for it.
    pub unit: &'static str,
    /// How it is drawn.
    pub kind: Kind,
    /// Columns of 24.
    pub width: u32,
    /// What is asked, and the legend of the answer. In every selector `$scraped` stands for the
    /// matchers of cluster, job and instance.
    pub queries: &'static [(&'static str, &'static str)],
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines over time.
    Lines,
    /// Lines over time, on top of each other.
    Stacked,
    /// The present number.
    Number,
    /// The present numbers with their labels.
    Table,
    /// A row for each series: where it is 1, and where it is not.
    Timeline,
}

impl Dashboard {
    /// All variables but the data source, in the order of choosing.
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

    /// Panels that stand beside each other.
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

    /// The dashboard as Grafana imports it.
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
    /// The series whose label is chosen from, narrowed by what was chosen `before`; `None` where there
    /// is a fixed list.
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

/// A variable whose values Prometheus knows.
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
    /// The queries as Grafana has them, and their legends.
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
