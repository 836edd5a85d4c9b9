//! The supervisors of a node's members (`docs/supervisor.md`), as its agent reaches them.
//!
//! | file | content |
//! |---|---|
//! | this one | what the agent's loop needs of them |
//! | `links` | the links of one node: who is linked, what was said when |
//! | `link` | one link: connect, listen, say, begin again |
//! | `socket` | the way to the socket, through folders that a tenant may have changed |
//! | `words` | frames of the protocol to and from the words of the decision |

mod link;
mod links;
mod socket;
pub mod words;

use std::time::Duration;

use lockstep_lifecycle::node::{NodePod, Tell};

pub use self::links::SupervisorLinks;

/// The supervisors of one node as its agent sees them.
pub trait Supervisors: Send {
    /// Why no supervisor of this node can be reached, for people; None: they can, which the agent
    /// tells as capability `Supervise`.
    fn out_of_reach(&self) -> Option<String>;

    /// Sets [`NodePod::supervisor`] of each pod, and keeps links to supervised ones only. The
    /// pods are all that there are on the node. States that pass between two looks are not seen: a
    /// child that starts and ends at once is one that has ended.
    fn look(&mut self, pods: &mut [NodePod]);

    /// The same while the runtime does not answer: the pods are those of the last [`Supervisors::look`].
    /// A connection that is newer than that may be another container's, and tells nothing.
    fn look_again(&mut self, pods: &mut [NodePod]);

    /// Says these words, each at once on a link that has not said it, and otherwise not before it
    /// is due again. Never waits. Returns when the next of them is due.
    fn tell(&mut self, words: &[Tell]) -> Option<Duration>;

    /// Returns when a supervisor has told something since the last [`Supervisors::look`]. May be
    /// dropped at any time, if what happens instead leads to a look.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// None: an agent that was told to leave supervisors alone.
impl<S: Supervisors> Supervisors for Option<S> {
    fn out_of_reach(&self) -> Option<String> {
        let switched_off = || Some("switched off".to_owned());
        self.as_ref()
            .map_or_else(switched_off, Supervisors::out_of_reach)
    }

    fn look(&mut self, pods: &mut [NodePod]) {
        if let Some(supervisors) = self {
            supervisors.look(pods);
        }
    }

    fn look_again(&mut self, pods: &mut [NodePod]) {
        if let Some(supervisors) = self {
            supervisors.look_again(pods);
        }
    }

    fn tell(&mut self, words: &[Tell]) -> Option<Duration> {
        self.as_mut()?.tell(words)
    }

    async fn changed(&mut self) {
        match self {
            Some(supervisors) => supervisors.changed().await,
            None => std::future::pending().await,
        }
    }
}
