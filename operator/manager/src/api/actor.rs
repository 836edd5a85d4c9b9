use std::ops::ControlFlow;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use super::clients::Clients;
use super::pace::Pace;

/// Clients and limits for the requests of one loop.
#[derive(Clone)]
pub struct Actor {
    pub read: Client,
    pub write: Client,
    /// Maximum number of concurrent requests of one cycle or reconcile.
    pub in_flight: usize,
    /// Adaptive limit of concurrent requests, at most `in_flight`.
    pub pace: Pace,
}

impl Actor {
    pub(crate) fn new(clients: &Clients, in_flight: usize) -> Self {
        Self {
            read: clients.read.clone(),
            write: clients.write.clone(),
            in_flight,
            pace: clients.pace.clone(),
        }
    }

    pub(crate) fn reads<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.read.clone(), namespace)
    }

    pub(crate) fn writes<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.write.clone(), namespace)
    }

    /// Starts requests in order, with as many in flight as `pace` allows, and passes each result to
    /// `settle`. After `settle` returns `Break`, no further request starts. Requests in flight
    /// still finish, because their results must be known.
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
            let Some(result) = flying.next().await else {
                return;
            };
            stopped |= settle(result).is_break();
        }
    }
}
