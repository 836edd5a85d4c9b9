//! The agent's side of the supervisors (`docs/supervisor.md`).
//!
//! | file | content |
//! |---|---|
//! | this one | what the agent's loop needs of supervisors |
//! | `links` | the links of one node and the messages sent on them |
//! | `link` | one link: connect, read, write, reconnect |
//! | `socket` | the path to the socket, through folders that a tenant may have changed |
//! | `frames` | conversion of frames to and from the commands of the decision |
//! | `words` | further words of a progress report |

pub mod frames;
mod link;
mod links;
mod socket;
mod words;

use std::time::Duration;

use lockstep_node::{NodePod, SupervisorMessage};

pub use self::links::SupervisorLinks;

pub trait Supervisors: Send {
    /// Why no supervisor of this node is reachable, for people. `None`: supervisors are reachable,
    /// and the agent publishes capability `Supervise`.
    fn out_of_reach(&self) -> Option<String>;

    /// Sets [`NodePod::supervisor`] of each pod, and keeps links only to supervised pods. `pods`
    /// are all pods of the node. Only the latest state counts: a child that started and ended since
    /// the last call counts as ended.
    fn observe(&mut self, pods: &mut [NodePod]);

    /// [`Supervisors::observe`] while the runtime does not answer, with the pods of the last call.
    /// The state of a newer connection is ignored, because it may belong to another container.
    fn observe_again(&mut self, pods: &mut [NodePod]);

    /// Sends these messages. A message is repeated on the same link only when it is due. Never
    /// blocks. Returns the time until the next repetition.
    fn send(&mut self, messages: &[SupervisorMessage]) -> Option<Duration>;

    /// Returns after a change since the last [`Supervisors::observe`]. After a drop, the caller
    /// must call `observe` anyway.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// `None`: supervision is switched off (`--supervise=false`).
impl<S: Supervisors> Supervisors for Option<S> {
    fn out_of_reach(&self) -> Option<String> {
        let switched_off = || Some("switched off".to_owned());
        self.as_ref()
            .map_or_else(switched_off, Supervisors::out_of_reach)
    }

    fn observe(&mut self, pods: &mut [NodePod]) {
        if let Some(supervisors) = self {
            supervisors.observe(pods);
        }
    }

    fn observe_again(&mut self, pods: &mut [NodePod]) {
        if let Some(supervisors) = self {
            supervisors.observe_again(pods);
        }
    }

    fn send(&mut self, messages: &[SupervisorMessage]) -> Option<Duration> {
        self.as_mut()?.send(messages)
    }

    async fn changed(&mut self) {
        match self {
            Some(supervisors) => supervisors.changed().await,
            None => std::future::pending().await,
        }
    }
}
