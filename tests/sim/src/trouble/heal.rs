use lockstep_api::key::Key;
use lockstep_api::{NodeHealthMode, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;

use super::{CLASSES, NAMESPACE, forged, nodes, users};
use crate::SimCluster;
use crate::api::Admission;
use crate::nodes::NodeFaults;

/// Ends all faults. Signals of nodes stand. Objects of users and tenants stay, except forged pods whose owner is in another
/// namespace or missing.
pub fn heal(c: &mut SimCluster) {
    for name in c.node_names() {
        c.fault(&name, |f| *f = NodeFaults::default());
        nodes::set_cordoned(c, &name, false);
        nodes::restore(c, &name);
    }
    c.set_node_health(NodeHealthMode::Act);
    for (name, value) in CLASSES {
        users::make_class(c, name, value);
    }
    for pod in users::kept_pods(c) {
        users::release(c, &pod);
    }
    for workload in c.list::<TrainingWorkload>() {
        let name = workload.metadata.name.unwrap_or_default();
        let claim = Key::new(NAMESPACE, format!("data-{name}"));
        c.store().make_claim(&claim, true);
    }
    {
        let mut store = c.store();
        store.admission = Admission::default();
        for kind in WatchedKind::ALL {
            store.watches.delay(kind, chrono::TimeDelta::zero());
        }
    }
    {
        let mut line = c.line();
        (line.cut_after, line.lost_answers) = (None, 0);
    }
    c.open_foreign_gates();
    forged::sweep(c);
}
