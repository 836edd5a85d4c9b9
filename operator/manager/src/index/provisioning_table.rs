use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::scheduling::{AutoscalerMode, ProvisioningState};
use lockstep_lifecycle::provisioning::{HeldObject, SignalPod};

/// A `ProvisioningRequest`, of any owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldRequest {
    pub held: HeldObject,
    /// UID of the workload that controls it.
    pub owner: Option<Uid>,
    pub class: String,
    pub state: ProvisioningState,
}

#[derive(Debug, Default)]
pub(super) struct ProvisioningTable {
    pub mode: AutoscalerMode,
    pub namespace: String,
    /// Version in which `ProvisioningRequest`s are served.
    pub version: Option<&'static str>,
    /// Pod groups with a demand, open or not.
    pub demanding: BTreeSet<Key>,
    pub signal_pods: BTreeMap<String, SignalPod>,
    pub requests: BTreeMap<Key, HeldRequest>,
    pub templates: BTreeMap<Key, HeldObject>,
}
