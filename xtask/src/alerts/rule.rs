//! Types of rules, and their Prometheus format.

use serde_json::{Value, json};

/// Urgency of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Act at once: nothing is scheduled or restarted.
    Critical,
    /// Act today.
    Warning,
    /// Act when there is time.
    Info,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A cluster state in a test of an alert.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Series and their values, one per minute, in `promtool`'s notation. They extend the series of
    /// a healthy pair of managers, or replace equal series.
    pub series: &'static [(&'static str, &'static str)],
    /// Time of the evaluation.
    pub at: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Name, also of its runbook.
    pub name: &'static str,
    pub severity: Severity,
    /// Expression. The alert is active while it has a result.
    pub expr: &'static str,
    /// Time that the expression must hold (`for`).
    pub hold: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Meaning, and commands to run.
    pub description: &'static str,
    /// A case in which it fires.
    pub fires: Case,
    /// A similar case in which it does not fire.
    pub silent: Case,
}

impl Alert {
    /// The alert in Prometheus' format.
    pub fn json(&self, runbooks: &str) -> Value {
        json!({
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity.as_str()},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": format!("{runbooks}/{}.md", self.name),
            },
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Recording {
    pub name: &'static str,
    pub labels: &'static [&'static str],
    /// Expression of the rule.
    pub expr: &'static str,
}

impl Recording {
    /// The rule in Prometheus' format.
    pub fn json(&self) -> Value {
        json!({"record": self.name, "expr": self.expr})
    }
}
