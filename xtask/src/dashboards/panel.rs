//! What a dashboard is, and how Grafana reads it.

use serde_json::{Value, json};

/// Schema of dashboards that Grafana 11 and later read.
const SCHEMA_VERSION: u32 = 39;
/// Columns of Grafana's grid.
const GRID: u32 = 24;
/// Height of a panel in rows of the grid.
const HEIGHT: u32 = 8;

/// A dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Dashboard {
    /// Name of the file and stable id.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// What it answers.
    pub description: &'static str,
    /// Panels, from the left to the right and down.
    pub panels: &'static [Panel],
}

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
    /// What is asked, and the legend of the answer.
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
}

impl Dashboard {
    /// The dashboard as Grafana imports it.
    pub fn json(&self) -> Value {
        let (mut x, mut y) = (0, 0);
        let mut panels = Vec::new();
        for (at, panel) in self.panels.iter().enumerate() {
            if x + panel.width > GRID {
                (x, y) = (0, y + HEIGHT);
            }
            let mut json = panel.json();
            json["id"] = json!(at + 1);
            json["gridPos"] = json!({"x": x, "y": y, "w": panel.width, "h": HEIGHT});
            panels.push(json);
            x += panel.width;
        }
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
            "templating": {"list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                choice("job", "Job", "label_values(lockstep_synced, job)"),
                choice("namespace", "Namespace",
                    "label_values(lockstep_workload_conditions{job=~\"$job\"}, namespace)"),
            ]},
            "panels": panels,
        })
    }
}

/// A variable whose values Prometheus knows.
fn choice(name: &str, label: &str, query: &str) -> Value {
    json!({
        "name": name, "label": label, "type": "query", "query": query, "definition": query,
        "datasource": source(), "refresh": 2, "sort": 1,
        "multi": true, "includeAll": true, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Panel {
    fn json(&self) -> Value {
        let now = matches!(self.kind, Kind::Number | Kind::Table);
        let queries = self.queries.iter().zip('A'..='Z');
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
        };
        let mut panel = json!({
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": source(),
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0, "custom": custom}, "overrides": []},
            "targets": targets,
        });
        if self.kind == Kind::Table {
            panel["transformations"] =
                json!([{"id": "organize", "options": {"excludeByName": {"Time": true}}}]);
        }
        panel
    }
}
