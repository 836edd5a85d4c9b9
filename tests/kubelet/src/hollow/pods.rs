//! A watch of the pods of all nodes.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::warn;

use crate::model::PodDesc;

/// An event of the watch for the kubelets.
#[derive(Debug)]
pub(super) enum PodEvent {
    /// State of a pod that is bound to a node, by node number.
    Seen {
        node: usize,
        pod: Arc<PodDesc>,
        status: Box<PodStatus>,
    },
    /// A pod is gone.
    Gone { uid: String },
    /// All existing pods were reported since the previous event of this kind. Others are gone.
    Listed,
}

/// Watches the pods of the nodes until dropped.
pub(super) async fn follow(
    client: Client,
    nodes: BTreeMap<String, usize>,
    events: mpsc::Sender<PodEvent>,
) {
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let mut stream = pin!(watcher(Api::<Pod>::all(client), config).default_backoff());
    while let Some(event) = stream.next().await {
        let told = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => seen(&nodes, pod),
            Ok(Event::Delete(pod)) => pod.metadata.uid.map(|uid| PodEvent::Gone { uid }),
            Ok(Event::InitDone) => Some(PodEvent::Listed),
            Ok(Event::Init) => None,
            Err(error) => {
                warn!(error = %error, "watch of pods failed, retrying");
                None
            }
        };
        if let Some(told) = told
            && events.send(told).await.is_err()
        {
            return;
        }
    }
}

fn seen(nodes: &BTreeMap<String, usize>, mut pod: Pod) -> Option<PodEvent> {
    let node = *nodes.get(pod.spec.as_ref()?.node_name.as_ref()?)?;
    let status = Box::new(pod.status.take().unwrap_or_default());
    Some(PodEvent::Seen {
        node,
        pod: Arc::new(PodDesc::from_api(pod)?),
        status,
    })
}
