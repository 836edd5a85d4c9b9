//! The documents of each page.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::view::{ClusterView, ObjectName, PageReads};
use super::{frame, health, incidents, list, map, overview, queue, workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Overview,
    Queue,
    Workload,
    Map,
    Whatif,
    Incidents,
    Health,
}

impl Page {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "overview" => Self::Overview,
            "queue" => Self::Queue,
            "workload" => Self::Workload,
            "map" => Self::Map,
            "whatif" => Self::Whatif,
            "incidents" => Self::Incidents,
            "health" => Self::Health,
            _ => return None,
        })
    }
}

/// What one reader looks at.
#[derive(Clone, Debug)]
pub struct Shown {
    pub page: Page,
    pub workload: Option<ObjectName>,
    pub namespace: Option<String>,
}

impl Shown {
    /// Namespace and name, if the page shows one workload.
    pub fn one_workload(&self) -> Option<&ObjectName> {
        let workload = self.workload.as_ref();
        workload.filter(|_| self.page == Page::Workload)
    }

    /// True if the page shows the queue, which the engine computes.
    pub fn has_queue(&self) -> bool {
        matches!(self.page, Page::Overview | Page::Queue) || self.one_workload().is_some()
    }

    /// True if the page shows what is not part of the view.
    pub fn has_reads(&self) -> bool {
        self.has_queue() || self.page == Page::Health
    }
}

/// The documents of a page by name.
pub fn documents(
    view: &ClusterView,
    reads: &PageReads,
    shown: &Shown,
    now: DateTime<Utc>,
) -> Vec<(&'static str, Value)> {
    let namespace = shown.namespace.as_deref();
    let of_page = match shown.page {
        Page::Overview => ("overview", overview::overview(view, reads, now)),
        Page::Queue => ("queue", queue::queue(view, reads, namespace, now)),
        Page::Workload => match &shown.workload {
            Some((of, name)) => ("workload", workload::workload(view, reads, (of, name), now)),
            None => ("workload", list::list(view, namespace)),
        },
        Page::Map | Page::Whatif => ("map", map::map(view, now)),
        Page::Incidents => ("incidents", incidents::incidents(view, namespace)),
        Page::Health => ("health", health::health(view, reads, now)),
    };
    vec![("frame", frame::frame(view, now)), of_page]
}
