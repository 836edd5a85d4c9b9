//! What each watched kind does to the tables.
//!
//! `read` is the border: what cannot be read, or has no identity, goes no further. `apply` and
//! `delete` are total and idempotent: a watch may repeat itself. An object whose meaning has not
//! changed touches nothing.

mod cluster;
mod limits;
mod ours;

use std::sync::Arc;

use kube::Resource;
use kube::core::DeserializeGuard;
use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_model::unreadable::{Unreadable, present};
use serde::de::DeserializeOwned;

pub(super) use cluster::{Budgets, Nodes, Pods, PriorityClasses};
pub(super) use limits::{Claims, Namespaces, Quotas, StorageClasses, Volumes};
pub(super) use ours::{Agents, Orders, PodGroups, SchedulingWorkloads, Services, Workloads};

use super::state::{Identified, Key, State, Touched};
use super::watched_kind::WatchedKind;

/// One watched kind.
pub(super) trait Watched: Send + 'static {
    /// What the watch delivers.
    type Received: Resource<DynamicType = ()>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static;
    /// What is made of it at the border.
    type Object;
    /// Which kind it is.
    const KIND: WatchedKind;

    /// The object with its identity, or why it is left alone.
    fn read(received: Self::Received) -> Result<Self::Object, String>;
    /// The object is there, as given.
    fn apply(
        state: &mut State,
        agents: &AgentSelector,
        key: Key,
        object: Self::Object,
        touched: &mut Touched,
    );
    /// The object is gone.
    fn delete(state: &mut State, key: &Key, touched: &mut Touched);
    /// Brings what is derived from all objects of the kind up to date. Called after each change, and once after a
    /// list.
    fn follow(_: &mut State, _: &mut Touched) {}
    /// Everything that is held of this kind.
    fn keys(state: &State) -> Vec<Key>;
}

/// How pods of our node agents are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSelector {
    /// Namespace of the agents' pods.
    pub namespace: String,
    /// Label of the agents' pods.
    pub label: (String, String),
}

/// An object of a namespace with the identity that every one has.
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

/// Takes a guarded object out: one that does not fit its type degrades itself only.
fn guarded<K: Resource<DynamicType = ()>>(
    received: DeserializeGuard<K>,
) -> Result<Identified<K>, String> {
    identified(received.0.map_err(|invalid| invalid.error)?)
}

fn node_name(object: &impl Resource) -> Result<NodeName, String> {
    NodeName::read(object.meta().name.as_deref())
        .ok_or_else(|| Unreadable::Missing("name").to_string())
}
