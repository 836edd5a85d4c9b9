//! Everything that clusters do to a controller and that it does not expect: refusals of every kind,
//! forged and foreign objects, overcommitted nodes, late and lost news.
//!
//! A [`Trouble`] is a kind and a number; the number chooses among what is there, so that a list of
//! troubles can be shortened and still makes sense. Property suites draw from it and say by
//! [`Mix`] what they really played.

mod containers;
mod control_plane;
mod foreign;
mod forged;
mod heal;
mod nodes;
mod report;
mod story;
mod training;
mod users;
mod workload;

use std::collections::BTreeMap;

use crate::SimCluster;

pub use heal::heal;
pub use story::{Settings, Story};
pub use workload::workload;

/// Namespace of the workloads.
pub const NAMESPACE: &str = "ml";
/// Namespace of somebody who has nothing to do with them.
pub const TENANT: &str = "tenant";
/// Priority classes and their values when a story begins.
pub const CLASSES: [(&str, i32); 4] = [("p10", 10), ("p20", 20), ("p30", 30), ("never", 40)];

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $weight:literal $play:path,)*) => {
        /// What happens.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum TroubleKind {
            $($(#[$doc])* $kind,)*
        }

        impl TroubleKind {
            /// Every kind, with how often it happens beside the others.
            pub const ALL: &[(Self, usize)] = &[$((Self::$kind, $weight),)*];

            fn play(self) -> Play {
                match self {
                    $(Self::$kind => $play,)*
                }
            }
        }
    };
}

/// Lets something happen; false: there is nothing that it could happen to.
type Play = fn(&mut SimCluster, &mut fastrand::Rng) -> bool;

kinds! {
    /// A workload is made.
    NewWorkload 12 users::new_workload,
    /// A workload is made whose members have supervisors and tell their progress.
    NewTrainer 3 training::new_trainer,
    /// A workload is deleted.
    DeleteWorkload 1 users::delete_workload,
    /// A workload is suspended, or goes on.
    Suspend 2 users::suspend,
    /// A restart is asked for.
    Nonce 1 users::nonce,
    /// A group gets more replicas, or fewer.
    Resize 2 users::resize,
    /// A pod is deleted.
    DeletePod 2 users::delete_pod,
    /// A pod is evicted through the API, as a drain does.
    EvictPod 1 users::evict_pod,
    /// A label of ours is taken off a pod.
    EditLabels 2 users::edit_labels,
    /// A priority class is deleted.
    ClassGone 1 users::class_gone,
    /// A priority class is there again, with another value.
    ClassAnew 1 users::class_anew,
    /// A claim that pods name comes into being.
    ClaimMade 1 users::claim_made,
    /// The training container of a pod exits with a failure.
    ExitFailed 6 containers::exit_failed,
    /// It exits with 0.
    ExitDone 2 containers::exit_done,
    /// The containers of all pods of a node exit at once.
    ExitAll 2 containers::exit_all,
    /// A member that tells its progress does no step any more.
    Stalls 3 training::stalls,
    /// It does steps in a little less time than it may take.
    SlowsDown 1 training::slows_down,
    /// It does no step any more, and goes on saving checkpoints.
    OnlySaves 1 training::only_saves,
    /// It fails, and when it is started again it does no step.
    NeverBegins 2 training::never_begins,
    /// It does no step any more, and the agent of its node is away until that is a hang.
    StallsUnheard 1 training::stalls_unheard,
    /// A pod of somebody else is bound to a node, whatever is free there.
    Overcommit 1 foreign::overcommit,
    /// A pod of a DaemonSet runs on a node.
    Daemon 1 foreign::daemon,
    /// A pod of somebody else that is not bound names a node.
    NamesNode 1 foreign::names_node,
    /// A pod of somebody else is nominated to a node.
    Nominated 1 foreign::nominated,
    /// A pod with a resource claim (DRA) runs on a node.
    WithResourceClaim 1 foreign::with_resource_claim,
    /// A pod whose budget allows no eviction runs on a node.
    Guarded 1 foreign::guarded,
    /// A gang of somebody else, an Indexed Job, runs on two nodes.
    ForeignGang 1 foreign::gang,
    /// Two pods of a group of Kueue's, which goes whole, run on nodes.
    KueueGroup 1 foreign::kueue_group,
    /// Something foreign goes.
    ForeignGone 3 foreign::gone,
    /// A pod says by its labels that it is a member; nobody of ours made it.
    ForgedMember 1 forged::member,
    /// The same, with an owner reference to the workload.
    ForgedOwner 1 forged::owned,
    /// The same, in another namespace.
    ForgedAbroad 1 forged::abroad,
    /// A node is not heard of any more.
    LoseNode 2 nodes::lose,
    /// A node is heard of again.
    FindNode 3 nodes::find,
    /// Many nodes do not reach the API server, and go on.
    Outage 1 nodes::outage,
    /// All nodes reach the API server again.
    OutageOver 2 nodes::outage_over,
    /// A device plugin takes accelerators away that are in use.
    Shrink 1 nodes::shrink,
    /// They are there again.
    Grow 3 nodes::grow,
    /// A node is cordoned, or uncordoned.
    Cordon 1 nodes::cordon,
    /// A node reboots.
    Reboot 1 nodes::reboot,
    /// A kubelet restarts.
    RestartKubelet 1 nodes::restart_kubelet,
    /// A kubelet rejects what comes to it, starts nothing, or does not let containers end; or not
    /// any more.
    Stubborn 2 nodes::stubborn,
    /// An agent forgets what it has done.
    AgentForgets 1 nodes::agent_forgets,
    /// An agent is silent or not there, or is there again.
    AgentAway 2 nodes::agent_away,
    /// The manager is lost after some writes, and another takes over.
    Crash 2 control_plane::crash,
    /// The answer to the next write does not arrive.
    LostAnswer 1 control_plane::lost_answer,
    /// A watch breaks, and lists anew.
    Relist 1 control_plane::relist,
    /// News of a kind come late.
    Lag 1 control_plane::lag,
    /// News of a kind come in time again.
    NoLag 1 control_plane::no_lag,
    /// A quota lets in so many pods, or as many as there are.
    Quota 1 control_plane::quota,
    /// There is no quota any more.
    NoQuota 2 control_plane::no_quota,
    /// A webhook changes pods: a toleration, a sidecar, a label. Or it is gone again.
    Webhook 1 control_plane::webhook,
    /// Writes of one kind are refused: by a policy, by overload, by an error of the server.
    Refusals 1 control_plane::refusals,
    /// Nothing is refused any more.
    NoRefusals 2 control_plane::no_refusals,
    /// Time passes in which nobody does anything: the manager was paused.
    Pause 2 control_plane::pause,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What.
    pub kind: TroubleKind,
    /// Chooses among what is there.
    pub number: u64,
}

impl Trouble {
    /// The trouble of a number: kinds as often as their weights say.
    pub fn draw(number: u64) -> Self {
        let all: Vec<TroubleKind> = TroubleKind::ALL.iter().map(|(kind, _)| *kind).collect();
        Self::draw_from(&all, number)
    }

    /// The same, of these kinds.
    pub fn draw_from(kinds: &[TroubleKind], number: u64) -> Self {
        let weighted = TroubleKind::ALL
            .iter()
            .filter(|(kind, _)| kinds.contains(kind));
        let mut each = weighted.flat_map(|(kind, weight)| std::iter::repeat_n(*kind, *weight));
        let at = fastrand::Rng::with_seed(number).usize(..each.clone().count().max(1));
        let kind = each.nth(at).unwrap_or(TroubleKind::Pause);
        Self { kind, number }
    }

    /// Lets it happen; false: there is nothing that it could happen to.
    pub fn happen(self, cluster: &mut SimCluster) -> bool {
        let mut rng = fastrand::Rng::with_seed(self.number.rotate_left(17));
        (self.kind.play())(cluster, &mut rng)
    }
}

/// How often each kind has really happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix(BTreeMap<TroubleKind, usize>);

impl Mix {
    /// It has happened.
    pub fn count(&mut self, kind: TroubleKind) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        for (kind, times) in &other.0 {
            *self.0.entry(*kind).or_default() += times;
        }
    }

    /// Kinds that have happened less often than this.
    pub fn rarer_than(&self, times: usize) -> Vec<TroubleKind> {
        let all = TroubleKind::ALL.iter().map(|(kind, _)| *kind);
        all.filter(|kind| self.0.get(kind).copied().unwrap_or(0) < times)
            .collect()
    }
}

/// One of a list.
fn one_of<T>(mut all: Vec<T>, rng: &mut fastrand::Rng) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(rng.usize(..all.len())))
}
