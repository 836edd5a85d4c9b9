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

macro_rules! feeds {
    ($($kind:ident => $field:ident: $watched:ty,)*) => {
        #[derive(Default)]
        pub struct Feeds {
            $($field: Feed<$watched>,)*
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
                    $(WatchedKind::$kind => handle(&mut self.$field, index, event),)*
                }
            }
        }
    };
}

feeds! {
    TrainingWorkload => workloads: Workloads,
    RestartOrder => orders: Orders,
    NodeAgent => agents: Agents,
    Workload => scheduling: SchedulingWorkloads,
    PodGroup => pod_groups: PodGroups,
    NativeWorkload => native_workloads: NativeWorkloads,
    NativePodGroup => native_pod_groups: NativePodGroups,
    Service => services: Services,
    Pod => pods: Pods,
    Node => nodes: Nodes,
    PriorityClass => priority_classes: PriorityClasses,
    PodDisruptionBudget => budgets: Budgets,
    PersistentVolumeClaim => claims: Claims,
    PersistentVolume => volumes: Volumes,
    StorageClass => storage_classes: StorageClasses,
    ResourceQuota => quotas: Quotas,
    Namespace => namespaces: Namespaces,
    ProvisioningRequest => provisioning_requests: ProvisioningRequests,
    PodTemplate => pod_templates: PodTemplates,
    KueueWorkload => kueue_workloads: KueueWorkloads,
    ResourceFlavor => flavors: Flavors,
    WorkloadPriorityClass => workload_priority_classes: WorkloadPriorityClasses,
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
