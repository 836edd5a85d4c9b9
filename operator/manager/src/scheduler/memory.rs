//! What the scheduler remembers between passes. All of it may be lost: it saves work and writes, and decides nothing that
//! a new process would not decide again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::workload::Group;
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_engine::NodeSet;
use lockstep_lifecycle::gangs::Gang;
use lockstep_model::gang::seats;
use lockstep_model::{Resources, Seats, Snapshot, Template, Verdicts};

use super::scene::GangObjects;
use crate::index::Key;

/// What the scheduler remembers.
#[derive(Debug, Default)]
pub struct Memory {
    /// Pod groups as our own writes left them, until the watch has caught up.
    pub(super) written: BTreeMap<Key, Arc<PodGroup>>,
    /// Since when kube-scheduler refuses a pod, by UID.
    pub(super) refused_since: HashMap<String, DateTime<Utc>>,
    /// Nodes that refused pods of a gang, by the UID of its pod group, and until when the gang stays away.
    pub(super) refusing_nodes: BTreeMap<String, BTreeMap<String, DateTime<Utc>>>,
    /// First and last attempt to evict a foreign pod, by UID.
    pub(super) evictions: HashMap<String, (DateTime<Utc>, DateTime<Utc>)>,
    /// Gangs for which no victims were found, by the UID of their pod group.
    pub(super) hopeless: HashMap<String, Hopeless>,
    /// Whether the last pass left gangs for which it did not look for victims: they come before those that had their turn.
    pub(super) unfinished: bool,
    /// When a gang was last told what is short, by the UID of its pod group.
    pub(super) told: HashMap<String, DateTime<Utc>>,
    /// Seats by UID of the pod group, as of a version of it.
    seats: HashMap<String, (String, Arc<Seats>)>,
    /// Gangs by UID of the pod group, as of a generation of the workload.
    gangs: HashMap<String, (Option<i64>, Arc<Gang>)>,
    /// Templates, and whether this pass has asked for them.
    templates: HashMap<String, (Template, bool)>,
    verdicts: Verdicts,
}

/// A gang for which no victims were found.
#[derive(Debug)]
pub(super) struct Hopeless {
    /// What was looked at, as a number.
    pub world: u64,
    /// When somebody may be evicted who may not be yet.
    pub until: Option<DateTime<Utc>>,
    /// Why there are none, for people.
    pub text: String,
}

impl Memory {
    /// Takes note of a pod group that we wrote.
    pub fn wrote(&mut self, key: Key, group: PodGroup) {
        self.written.insert(key, Arc::new(group));
    }

    /// The pod group as we know it: the watch may lag behind our own writes. Versions of one object are comparable
    /// numbers (KEP-5504); one that is not a number is never preferred.
    pub(super) fn latest(&mut self, key: &Key, seen: &Arc<PodGroup>) -> Arc<PodGroup> {
        let version =
            |g: &PodGroup| g.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
        match self.written.get(key) {
            Some(own) if own.metadata.uid == seen.metadata.uid && version(own) > version(seen) => Arc::clone(own),
            Some(_) => {
                self.written.remove(key);
                Arc::clone(seen)
            }
            None => Arc::clone(seen),
        }
    }

    /// The placement of a pod group, parsed once for each version of it.
    pub(super) fn seats(&mut self, group: &PodGroup) -> Option<Arc<Seats>> {
        let placement = group.status.as_ref()?.placement.as_ref()?;
        let (uid, version) = (group.metadata.uid.clone()?, group.metadata.resource_version.clone()?);
        match self.seats.get(&uid) {
            Some((parsed, seats)) if *parsed == version => Some(Arc::clone(seats)),
            _ => {
                let parsed = Arc::new(seats(placement));
                self.seats.insert(uid, (version, Arc::clone(&parsed)));
                Some(parsed)
            }
        }
    }

    /// The members of a gang, listed once for each generation of its workload.
    pub(super) fn gang(&mut self, objects: &GangObjects) -> Option<Arc<Gang>> {
        let (uid, generation) = (objects.group.metadata.uid.clone()?, objects.workload.metadata.generation);
        match self.gangs.get(&uid) {
            Some((of, gang)) if *of == generation => Some(Arc::clone(gang)),
            _ => {
                let gang = Arc::new(objects.gang()?);
                self.gangs.insert(uid, (generation, Arc::clone(&gang)));
                Some(gang)
            }
        }
    }

    /// What one pod of a group holds, or why that cannot be told.
    pub(super) fn requests(&mut self, workload: &TrainingWorkload, group: &Group) -> Result<Arc<Resources>, String> {
        self.template(workload, group).requests.clone().map_err(|e| e.to_string())
    }

    /// Nodes that admit the pods of a group.
    pub(super) fn eligible(&mut self, workload: &TrainingWorkload, group: &Group, cluster: &Snapshot) -> Arc<NodeSet> {
        let key = template_key(workload, group);
        let constraints = self.template(workload, group).constraints.clone();
        self.verdicts.eligible(&key, &constraints, cluster)
    }

    fn template(&mut self, workload: &TrainingWorkload, group: &Group) -> &Template {
        let key = template_key(workload, group);
        let (template, used) = self.templates.entry(key).or_insert_with(|| (Template::from(group), true));
        *used = true;
        template
    }

    /// Forgets what a pass no longer came across: pod groups, pods that are refused, pods that are being evicted.
    pub(super) fn retain(
        &mut self,
        groups: &HashSet<String>,
        refused: &HashSet<String>,
        targeted: &BTreeSet<String>,
        now: DateTime<Utc>,
    ) {
        self.evictions.retain(|uid, _| targeted.contains(uid));
        self.templates.retain(|_, (_, used)| std::mem::take(used));
        self.verdicts.retain_used();
        self.refused_since.retain(|uid, _| refused.contains(uid));
        self.seats.retain(|uid, _| groups.contains(uid));
        self.gangs.retain(|uid, _| groups.contains(uid));
        self.told.retain(|uid, _| groups.contains(uid));
        self.hopeless.retain(|uid, _| groups.contains(uid));
        self.refusing_nodes.retain(|uid, nodes| {
            nodes.retain(|_, until| *until > now);
            groups.contains(uid) && !nodes.is_empty()
        });
    }
}

/// The template of a group changes only with the generation of its workload.
fn template_key(workload: &TrainingWorkload, group: &Group) -> String {
    let meta = &workload.metadata;
    format!("{}/{}/{}", meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default(), group.name)
}
