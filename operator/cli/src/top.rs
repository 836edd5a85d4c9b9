use std::cmp::Reverse;
use std::collections::BTreeMap;

use lockstep_api::PodGroup;
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Group;
use lockstep_model::CostModel;
use lockstep_model::Resources;
use lockstep_model::pods::pod_view::PodSpecView;
use lockstep_model::pods::resources::pod_requests;
use serde::Serialize;

use crate::objects::{has_ended, owns};
use crate::view::table::Table;
use crate::view::{RenderOptions, View};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorUse {
    /// Sorted by namespace, then by descending priority.
    pub rows: Vec<UseOfPriority>,
    /// Allocatable accelerators of nodes; absent if the user may not list nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<i64>,
    /// The only namespace read; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Label selector of the workloads read; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_labels: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UseOfPriority {
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    pub holding: usize,
    pub held: i64,
    pub waiting: usize,
    pub wanted: i64,
}

/// `allocatable`: accelerators of nodes, if known.
pub fn top(
    workloads: &[TrainingWorkload],
    groups: &[PodGroup],
    allocatable: Option<i64>,
) -> AcceleratorUse {
    let costs = CostModel::default();
    let mut rows: BTreeMap<(String, Reverse<Option<i32>>), UseOfPriority> = BTreeMap::new();
    for workload in workloads {
        let status = workload.status.clone().unwrap_or_default();
        let held = status.accounting.accelerators;
        let lacking = if has_ended(workload) || workload.spec.suspend {
            0
        } else {
            (requested_accelerators(workload, &costs) - held).max(0)
        };
        if held == 0 && lacking == 0 {
            continue;
        }
        let namespace = workload.metadata.namespace.clone().unwrap_or_default();
        let group = groups.iter().find(|g| owns(workload, *g));
        let priority = group.map(|g| g.spec.gang.priority);
        let row = rows
            .entry((namespace.clone(), Reverse(priority)))
            .or_default();
        row.namespace = namespace;
        row.priority = priority;
        row.holding += usize::from(held > 0);
        row.held += held;
        row.waiting += usize::from(lacking > 0);
        row.wanted += lacking;
    }
    AcceleratorUse {
        rows: rows.into_values().collect(),
        allocatable,
        only_namespace: None,
        only_labels: None,
    }
}

/// Accelerators that the spec requests for all members. An unreadable template counts as 0: its
/// workload is Stalled.
fn requested_accelerators(workload: &TrainingWorkload, costs: &CostModel) -> i64 {
    let spec = &workload.spec;
    let each = |group| Some(member_accelerators(group, costs)? * i64::from(spec.members_of(group)));
    spec.groups.iter().filter_map(each).sum()
}

fn member_accelerators(group: &Group, costs: &CostModel) -> Option<i64> {
    Some(costs.accelerators(&member_requests(group)?))
}

/// Requests of one member of a group; `None` if the template is unreadable.
pub fn member_requests(group: &Group) -> Option<Resources> {
    let spec = serde_json::to_value(&group.template.0.spec).ok()?;
    let spec: PodSpecView = serde_json::from_value(spec).ok()?;
    pod_requests(&spec).ok()
}

impl View for AcceleratorUse {
    fn screen(&self, options: &RenderOptions) -> String {
        let mut table = Table::new(&[
            "NAMESPACE",
            "PRIORITY",
            "RUNNING",
            "ACCELERATORS",
            "WAITING",
            "REQUESTED",
        ]);
        let mut all = UseOfPriority::default();
        for row in &self.rows {
            all.holding += row.holding;
            all.held += row.held;
            all.waiting += row.waiting;
            all.wanted += row.wanted;
            table.row(cells(row, row.namespace.clone()));
        }
        if self.rows.len() > 1 {
            table.row(cells(&all, "(all)".to_owned()));
        }
        // With a filter, the rows do not cover all use, so the free number is unknown.
        let some = self.only_namespace.is_some() || self.only_labels.is_some();
        let mut out = if self.rows.is_empty() {
            let of_these = if some { " of these" } else { "" };
            format!("no workload{of_these} holds or requests accelerators\n")
        } else {
            table.render(options)
        };
        let nodes = match self.allocatable {
            Some(total) => {
                let rest = (total - all.held).max(0);
                format!(
                    "Nodes have {total}; {rest} are free, held by other pods, or on unschedulable nodes.\n"
                )
            }
            None => "The capacity of nodes is unknown: no permission to read nodes.\n".to_owned(),
        };
        out.push('\n');
        if !some {
            out.push_str(&nodes);
        }
        out.push_str(
            "RUNNING and WAITING count workloads. ACCELERATORS are held by placed members, REQUESTED by members without a node. Utilization is not measured.\n",
        );
        out
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .rows
            .iter()
            .map(|r| format!("namespace/{}", r.namespace))
            .collect();
        names.dedup();
        names
    }
}

fn cells(row: &UseOfPriority, namespace: String) -> [String; 6] {
    [
        namespace,
        row.priority.map(|p| p.to_string()).unwrap_or_default(),
        row.holding.to_string(),
        row.held.to_string(),
        row.waiting.to_string(),
        row.wanted.to_string(),
    ]
}
