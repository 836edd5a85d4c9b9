//! What a rule is, and how Prometheus reads it.

use serde_json::{Value, json};

/// Who is to look, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// At once: nothing is scheduled or restarted.
    Critical,
    /// Today.
    Warning,
    /// When there is time.
    Info,
}

impl Severity {
    /// As the label says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A state of the cluster that a test of an alert plays.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Series and their values, one a minute, in the notation of `promtool`. They come on top of a
    /// healthy pair of managers, and instead of those of its series that are the same.
    pub series: &'static [(&'static str, &'static str)],
    /// When it is looked.
    pub at: &'static str,
}

/// An alert.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Name, without the prefix that all have in Prometheus; that of its runbook, too.
    pub name: &'static str,
    /// Who is to look.
    pub severity: Severity,
    /// What is wrong when it has an answer.
    pub expr: &'static str,
    /// For how long it has to be so.
    pub hold: &'static str,
    /// One line.
    pub summary: &'static str,
    /// What it means, and what to type.
    pub description: &'static str,
    /// Where it fires.
    pub fires: Case,
    /// Where it does not, and nearly would.
    pub silent: Case,
}

impl Alert {
    /// As Prometheus reads it.
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

/// A series that Prometheus computes.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    /// Its name.
    pub name: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// How it is computed.
    pub expr: &'static str,
}

impl Recording {
    /// As Prometheus reads it.
    pub fn json(&self) -> Value {
        json!({"record": self.name, "expr": self.expr})
    }
}
