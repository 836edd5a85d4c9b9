//! Feeds of all kinds with JSON objects, for callers that deliver watch events themselves.

use kube::runtime::watcher::Event;
use serde_json::{Error, Value, from_value};

use super::kinds::{
    Agents, Budgets, Claims, Flavors, KueueWorkloads, Namespaces, NativePodGroups, NativeWorkloads,
    Nodes, Orders, PodGroups, PodTemplates, Pods, PriorityClasses, ProvisioningRequests, Quotas,
    SchedulingWorkloads, Services, StorageClasses, Volumes, Watched, WorkloadPriorityClasses,
    Workloads,
};
use super::{Feed, Index, WatchedKind};

pub struct Feeds {
    workloads: Feed<Workloads>,
    orders: Feed<Orders>,
    agents: Feed<Agents>,
    scheduling: Feed<SchedulingWorkloads>,
    pod_groups: Feed<PodGroups>,
    native_workloads: Feed<NativeWorkloads>,
    native_pod_groups: Feed<NativePodGroups>,
    services: Feed<Services>,
    pods: Feed<Pods>,
    nodes: Feed<Nodes>,
    priority_classes: Feed<PriorityClasses>,
    budgets: Feed<Budgets>,
    claims: Feed<Claims>,
    volumes: Feed<Volumes>,
    storage_classes: Feed<StorageClasses>,
    quotas: Feed<Quotas>,
    namespaces: Feed<Namespaces>,
    provisioning_requests: Feed<ProvisioningRequests>,
    pod_templates: Feed<PodTemplates>,
    kueue_workloads: Feed<KueueWorkloads>,
    flavors: Feed<Flavors>,
    workload_priority_classes: Feed<WorkloadPriorityClasses>,
}

impl Default for Feeds {
    fn default() -> Self {
        Self {
            workloads: Feed::new(),
            orders: Feed::new(),
            agents: Feed::new(),
            scheduling: Feed::new(),
            pod_groups: Feed::new(),
            native_workloads: Feed::new(),
            native_pod_groups: Feed::new(),
            services: Feed::new(),
            pods: Feed::new(),
            nodes: Feed::new(),
            priority_classes: Feed::new(),
            budgets: Feed::new(),
            claims: Feed::new(),
            volumes: Feed::new(),
            storage_classes: Feed::new(),
            quotas: Feed::new(),
            namespaces: Feed::new(),
            provisioning_requests: Feed::new(),
            pod_templates: Feed::new(),
            kueue_workloads: Feed::new(),
            flavors: Feed::new(),
            workload_priority_classes: Feed::new(),
        }
    }
}

impl Feeds {
    /// Applies one watch event to the index.
    ///
    /// # Errors
    /// The object is not of this kind.
    pub fn handle(
        &mut self,
        index: &Index,
        kind: WatchedKind,
        event: Event<Value>,
    ) -> Result<(), Error> {
        match kind {
            WatchedKind::TrainingWorkload => handle(&mut self.workloads, index, event),
            WatchedKind::RestartOrder => handle(&mut self.orders, index, event),
            WatchedKind::NodeAgent => handle(&mut self.agents, index, event),
            WatchedKind::Workload => handle(&mut self.scheduling, index, event),
            WatchedKind::PodGroup => handle(&mut self.pod_groups, index, event),
            WatchedKind::NativeWorkload => handle(&mut self.native_workloads, index, event),
            WatchedKind::NativePodGroup => handle(&mut self.native_pod_groups, index, event),
            WatchedKind::Service => handle(&mut self.services, index, event),
            WatchedKind::Pod => handle(&mut self.pods, index, event),
            WatchedKind::Node => handle(&mut self.nodes, index, event),
            WatchedKind::PriorityClass => handle(&mut self.priority_classes, index, event),
            WatchedKind::PodDisruptionBudget => handle(&mut self.budgets, index, event),
            WatchedKind::PersistentVolumeClaim => handle(&mut self.claims, index, event),
            WatchedKind::PersistentVolume => handle(&mut self.volumes, index, event),
            WatchedKind::StorageClass => handle(&mut self.storage_classes, index, event),
            WatchedKind::ResourceQuota => handle(&mut self.quotas, index, event),
            WatchedKind::Namespace => handle(&mut self.namespaces, index, event),
            WatchedKind::ProvisioningRequest => {
                handle(&mut self.provisioning_requests, index, event)
            }
            WatchedKind::PodTemplate => handle(&mut self.pod_templates, index, event),
            WatchedKind::KueueWorkload => handle(&mut self.kueue_workloads, index, event),
            WatchedKind::ResourceFlavor => handle(&mut self.flavors, index, event),
            WatchedKind::WorkloadPriorityClass => {
                handle(&mut self.workload_priority_classes, index, event)
            }
        }
    }
}

fn handle<W: Watched>(feed: &mut Feed<W>, index: &Index, event: Event<Value>) -> Result<(), Error> {
    let event = match event {
        Event::Apply(object) => Event::Apply(from_value(object)?),
        Event::Delete(object) => Event::Delete(from_value(object)?),
        Event::InitApply(object) => Event::InitApply(from_value(object)?),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    };
    feed.handle(index, event);
    Ok(())
}
