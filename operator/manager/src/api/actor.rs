//! Requests in flight.

use std::ops::ControlFlow;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use super::pace::Pace;

/// What a loop sends its requests with.
#[derive(Clone)]
pub struct Actor {
    /// Client for reads.
    pub read: Client,
    /// Client for writes.
    pub write: Client,
    /// Most requests of one pass in flight.
    pub in_flight: usize,
    /// How many of them the server bears.
    pub pace: Pace,
}

impl Actor {
    /// Objects of a namespace, to read.
    pub(crate) fn reads<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.read.clone(), namespace)
    }

    /// Objects of a namespace, to change.
    pub(crate) fn writes<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.write.clone(), namespace)
    }

    /// Sends requests in their order, so many at a time, and hands over each answer as it comes.
    /// After a break no more are sent; those in flight are finished, since their effect must be
    /// known.
    pub(crate) async fn send_all<F: Future>(
        &self,
        requests: impl IntoIterator<Item = F>,
        mut settle: impl FnMut(F::Output) -> ControlFlow<()>,
    ) {
        let mut waiting = requests.into_iter();
        let mut flying = FuturesUnordered::new();
        let mut stopped = false;
        loop {
            while !stopped
                && flying.len() < self.pace.allows(self.in_flight)
                && let Some(request) = waiting.next()
            {
                flying.push(request);
            }
            let Some(answer) = flying.next().await else {
                return;
            };
            stopped |= settle(answer).is_break();
        }
    }
}
