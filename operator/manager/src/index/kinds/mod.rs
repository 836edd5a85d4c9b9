//! How each watched kind updates the tables.
//!
//! `read` rejects unreadable objects and objects without identity. `apply` and `delete` are total
//! and idempotent, because a watch can repeat events. An object without a relevant change affects
//! nothing.

mod cluster;
mod kueue;
mod limits;
mod native;
mod ours;
mod provisioning;

use std::sync::Arc;

use kube::Resource;
use kube::core::DeserializeGuard;
use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_model::common::unreadable::{Unreadable, present};
use serde::de::DeserializeOwned;

pub(super) use cluster::{Budgets, Nodes, Pods, PriorityClasses};
pub(super) use kueue::{Flavors, KueueWorkloads, WorkloadPriorityClasses};
pub(super) use limits::{Claims, Namespaces, Quotas, StorageClasses, Volumes};
pub(super) use native::{NativePodGroups, NativeWorkloads};
pub(super) use ours::{Agents, Orders, PodGroups, SchedulingWorkloads, Services, Workloads};
pub(super) use provisioning::{PodTemplates, ProvisioningRequests};

use super::state::{Identified, Key, State, Touched};
use super::watched_kind::WatchedKind;

pub(super) trait Watched: Send + 'static {
    type Received: Resource + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static;
    type Object;
    const KIND: WatchedKind;

    fn read(received: Self::Received) -> Result<Self::Object, String>;
    fn apply(
        state: &mut State,
        agents: &AgentSelector,
        key: Key,
        object: Self::Object,
        touched: &mut Touched,
    );
    fn delete(state: &mut State, key: &Key, touched: &mut Touched);
    /// Updates data derived from all objects of the kind, after each change and after a list.
    fn follow(_: &mut State, _: &mut Touched) {}
    fn keys(state: &State) -> Vec<Key>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSelector {
    pub namespace: String,
    pub label: (String, String),
}

fn identified<K: Resource<DynamicType = ()>>(object: K) -> Result<Identified<K>, String> {
    let meta = object.meta();
    present("name", meta.name.as_ref())
        .and_then(|_| present("namespace", meta.namespace.as_ref()))
        .map_err(|missing| missing.to_string())?;
    let missing = |field| Unreadable::Missing(field).to_string();
    let uid = Uid::read(meta.uid.as_deref()).ok_or_else(|| missing("uid"))?;
    let version = ResourceVersion::read(meta.resource_version.as_deref())
        .ok_or_else(|| missing("resourceVersion"))?;
    Ok(Identified {
        uid,
        version,
        object: Arc::new(object),
    })
}

/// Rejects an object that does not match its type.
fn guarded<K: Resource<DynamicType = ()>>(
    received: DeserializeGuard<K>,
) -> Result<Identified<K>, String> {
    identified(received.0.map_err(|invalid| invalid.error)?)
}

fn node_name(object: &impl Resource) -> Result<NodeName, String> {
    NodeName::read(object.meta().name.as_deref())
        .ok_or_else(|| Unreadable::Missing("name").to_string())
}
