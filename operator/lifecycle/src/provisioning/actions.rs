use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::provisioning::ProvisioningRequest;

/// A request to the API server. UIDs are preconditions.
#[derive(Clone, Debug, PartialEq)]
pub enum ProvisioningAction {
    DeletePod {
        name: String,
        uid: Uid,
        /// Seconds. `None`: the pod's own.
        grace: Option<u32>,
    },
    DeleteRequest {
        key: Key,
        uid: Uid,
    },
    DeleteTemplate {
        key: Key,
        uid: Uid,
    },
    /// Set the condition by which autoscalers see the pod.
    ShowPod {
        name: String,
        uid: Uid,
    },
    CreatePod(Box<Pod>),
    CreateTemplate(Box<PodTemplate>),
    CreateRequest(Box<ProvisioningRequest>),
}

/// Requests in the order in which they are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProvisioningPlan {
    /// Deletions and signs. They depend on no other request.
    pub first: Vec<ProvisioningAction>,
    /// Creations by pod group, in queue order. After a refusal, the rest of its list is pointless.
    pub creations: Vec<(Key, Vec<ProvisioningAction>)>,
    /// Objects of others with the name of an object that a gang needs.
    pub taken: Vec<Key>,
}
