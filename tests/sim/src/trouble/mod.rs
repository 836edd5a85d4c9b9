//! Unexpected events of a cluster: refusals of every kind, forged and foreign objects,
//! overcommitted nodes, late and lost events.
//!
//! A [`Trouble`] is a kind and a number. The number chooses among the present objects, so that a
//! shortened list of troubles still makes sense. Property suites draw from it, and [`Mix`] counts
//! the played kinds.

mod containers;
mod control_plane;
mod foreign;
mod forged;
mod heal;
mod nodes;
mod report;
mod signals;
mod story;
mod training;
mod users;
mod workload;

use std::collections::BTreeMap;

use crate::SimCluster;

pub use heal::heal;
pub use story::{Settings, Story};
pub use users::record_hash;
pub use workload::workload;

pub const NAMESPACE: &str = "ml";
/// Namespace of an unrelated tenant.
pub const TENANT: &str = "tenant";
/// Priority classes and their values at the start of a story.
pub const CLASSES: [(&str, i32); 4] = [("p10", 10), ("p20", 20), ("p30", 30), ("never", 40)];

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $weight:literal $play:path,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum TroubleKind {
            $($(#[$doc])* $kind,)*
        }

        impl TroubleKind {
            /// All kinds with their weights.
            pub const ALL: &[(Self, usize)] = &[$((Self::$kind, $weight),)*];

            fn play(self) -> Play {
                match self {
                    $(Self::$kind => $play,)*
                }
            }
        }
    };
}

/// Plays an event. False if no object is suitable.
type Play = fn(&mut SimCluster, &mut fastrand::Rng) -> bool;

kinds! {
    /// A workload is created.
    NewWorkload 12 users::new_workload,
    /// A workload with supervisors is created, whose members report progress.
    NewTrainer 6 training::new_trainer,
    /// A workload is deleted.
    DeleteWorkload 1 users::delete_workload,
    /// A workload is suspended or resumed.
    Suspend 2 users::suspend,
    /// A workload is suspended, and resumed a little later.
    SuspendBriefly 2 users::suspend_briefly,
    /// A restart is requested.
    Nonce 1 users::nonce,
    /// A user requests a checkpoint.
    RequestCheckpoint 2 users::request_checkpoint,
    /// A group gets more replicas, or fewer.
    Resize 2 users::resize,
    /// A pod is deleted.
    DeletePod 4 users::delete_pod,
    /// A pod is evicted through the API, as a drain does.
    EvictPod 3 users::evict_pod,
    /// A pod that another controller's finalizer keeps is deleted, or the finalizer is removed.
    Finalizer 2 users::finalizer,
    /// A label of Lockstep is removed from an object that a workload owns, or changed.
    EditLabels 2 users::edit_labels,
    /// A PodGroup, a native Workload, a RestartOrder or a Service of a workload is deleted.
    DeleteOwned 2 users::delete_owned,
    /// Recorded hashes of a workload become those of another version of the manager.
    OtherHashVersion 2 users::other_hash_version,
    /// A priority class is deleted.
    ClassGone 1 users::class_gone,
    /// A priority class is recreated with another value.
    ClassAnew 1 users::class_anew,
    /// A claim that pods name is created.
    ClaimMade 1 users::claim_made,
    /// The training container of a pod exits with a failure.
    ExitFailed 6 containers::exit_failed,
    /// The same with exit code 0.
    ExitDone 6 containers::exit_done,
    /// The kubelet evicts a pod because memory is low, or because the pod exceeds its own limit.
    KubeletEvicts 2 containers::kubelet_evicts,
    /// The containers of all pods of a node exit at once.
    ExitAll 3 containers::exit_all,
    /// A member that reports progress makes no further step.
    Stalls 3 training::stalls,
    /// Its steps take a little less than the limit.
    SlowsDown 1 training::slows_down,
    /// It makes no further step, but saves checkpoints.
    OnlySaves 1 training::only_saves,
    /// It fails, and makes no step after its restart.
    NeverBegins 2 training::never_begins,
    /// It makes no further step, and the agent of its node is absent until this is a hang.
    StallsUnheard 1 training::stalls_unheard,
    /// A foreign pod is bound to a node, whatever capacity is free.
    Overcommit 1 foreign::overcommit,
    /// A pod of a DaemonSet runs on a node.
    Daemon 1 foreign::daemon,
    /// An unbound foreign pod names a node.
    NamesNode 1 foreign::names_node,
    /// A foreign pod is nominated to a node.
    Nominated 1 foreign::nominated,
    /// A pod with a resource claim (DRA) runs on a node.
    WithResourceClaim 1 foreign::with_resource_claim,
    /// A pod whose budget allows no eviction runs on a node.
    Guarded 1 foreign::guarded,
    /// A foreign gang, an Indexed Job, runs on two nodes.
    ForeignGang 1 foreign::gang,
    /// Two pods of a Kueue group, which is evicted whole, run on nodes.
    KueueGroup 1 foreign::kueue_group,
    /// A foreign pod has labels that constraints of a workload select.
    Namesake 1 foreign::namesake,
    /// A foreign pod is resized in place.
    ResizePod 1 foreign::resize,
    /// A foreign object is deleted.
    ForeignGone 3 foreign::gone,
    /// A foreign pod has the labels of a member.
    ForgedMember 3 forged::member,
    /// The same, with an owner reference to the workload.
    ForgedOwner 2 forged::owned,
    /// The same, in another namespace.
    ForgedAbroad 2 forged::abroad,
    /// A node falls silent.
    LoseNode 2 nodes::lose,
    /// A silent node returns.
    FindNode 4 nodes::find,
    /// A node is silent for 5 to 40 s.
    Flap 4 nodes::flap,
    /// Many nodes lose the API server, and continue.
    Outage 1 nodes::outage,
    /// All nodes reach the API server again.
    OutageOver 5 nodes::outage_over,
    /// A device plugin removes accelerators that are in use.
    Shrink 1 nodes::shrink,
    /// The accelerators return.
    Grow 5 nodes::grow,
    /// A node is cordoned, uncordoned, or tainted by its autoscaler.
    Cordon 1 nodes::cordon,
    /// A signal is set on a node: an announced maintenance, a taint of an autoscaler, a fault.
    Signal 3 signals::set,
    /// A signal is withdrawn.
    SignalEnds 3 signals::withdraw,
    /// Monitors report again what they have found.
    SignalRepeats 1 signals::repeat,
    /// The mode of node signals is changed.
    SignalMode 1 signals::switch_mode,
    /// A node reboots, perhaps with another clock.
    Reboot 1 nodes::reboot,
    /// A kubelet restarts.
    RestartKubelet 1 nodes::restart_kubelet,
    /// A kubelet rejects new pods, starts no container, or ends no container; or recovers.
    Stubborn 2 nodes::stubborn,
    /// An agent loses its records.
    AgentForgets 1 nodes::agent_forgets,
    /// An agent is silent or absent, or returns.
    AgentAway 2 nodes::agent_away,
    /// The manager is lost after some writes, and another process takes over, perhaps with another
    /// clock.
    Crash 2 control_plane::crash,
    /// The response to the next write is lost.
    LostAnswer 1 control_plane::lost_answer,
    /// A watch breaks and lists again.
    Relist 1 control_plane::relist,
    /// Events of a kind are delayed.
    Lag 1 control_plane::lag,
    /// Events of a kind arrive in time again.
    NoLag 1 control_plane::no_lag,
    /// A quota allows this number of pods, or the current number.
    Quota 1 control_plane::quota,
    /// The quota is removed.
    NoQuota 5 control_plane::no_quota,
    /// A webhook changes pods: a toleration, a sidecar, a label. Or it is removed.
    Webhook 1 control_plane::webhook,
    /// A policy refuses new pods of one replica. Or it is removed.
    RefuseReplica 2 control_plane::refuse_replica,
    /// Another controller adds a scheduling gate to new pods.
    Gates 3 control_plane::gates,
    /// The gates open.
    GatesOpen 12 control_plane::gates_open,
    /// Writes of one kind are refused: by a policy, by overload, by an error of the server.
    Refusals 1 control_plane::refusals,
    /// Refusals end.
    NoRefusals 5 control_plane::no_refusals,
    /// Time passes without turns: the manager was paused.
    Pause 2 control_plane::pause,
    /// Minutes pass, and everything runs.
    Minutes 3 control_plane::minutes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub kind: TroubleKind,
    /// Chooses among the present objects.
    pub number: u64,
}

impl Trouble {
    /// The trouble of a number, by the weights of the kinds.
    pub fn draw(number: u64) -> Self {
        let all: Vec<TroubleKind> = TroubleKind::ALL.iter().map(|(kind, _)| *kind).collect();
        Self::draw_from(&all, number)
    }

    /// [`Self::draw`] among these kinds.
    pub fn draw_from(kinds: &[TroubleKind], number: u64) -> Self {
        let weighted = TroubleKind::ALL
            .iter()
            .filter(|(kind, _)| kinds.contains(kind));
        let mut each = weighted.flat_map(|(kind, weight)| std::iter::repeat_n(*kind, *weight));
        let at = fastrand::Rng::with_seed(number).usize(..each.clone().count().max(1));
        let kind = each.nth(at).unwrap_or(TroubleKind::Pause);
        Self { kind, number }
    }

    /// Plays the trouble. False if no object is suitable.
    pub fn happen(self, cluster: &mut SimCluster) -> bool {
        let mut rng = fastrand::Rng::with_seed(self.number.rotate_left(17));
        (self.kind.play())(cluster, &mut rng)
    }
}

/// Number of played troubles by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix(BTreeMap<TroubleKind, usize>);

impl Mix {
    pub fn count(&mut self, kind: TroubleKind) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (kind, times) in &other.0 {
            *self.0.entry(*kind).or_default() += times;
        }
    }

    /// Kinds that were played less often.
    pub fn rarer_than(&self, times: usize) -> Vec<TroubleKind> {
        let all = TroubleKind::ALL.iter().map(|(kind, _)| *kind);
        all.filter(|kind| self.0.get(kind).copied().unwrap_or(0) < times)
            .collect()
    }
}

fn one_of<T>(mut all: Vec<T>, rng: &mut fastrand::Rng) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(rng.usize(..all.len())))
}
