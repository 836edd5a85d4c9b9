//! Claims for volumes, as kube-scheduler's `VolumeBinding` plugin judges them: what keeps a pod from
//! every node, and which nodes its volumes can be reached from.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec};
use lockstep_api::key::Key;
use thiserror::Error;

/// A claim for a volume.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of the object that have nothing to do with each other"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// UID.
    pub uid: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its volume was lost.
    pub lost: bool,
    /// Whether binding is complete.
    pub bound: bool,
    /// `spec.volumeName`, empty before it has one.
    pub volume: String,
    /// Name of its storage class; empty: none.
    pub class: String,
    /// Whether one pod at a time may mount it (access mode `ReadWriteOncePod`).
    pub one_pod: bool,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    /// The claim that it is for.
    pub claim: Option<Key>,
    /// Name of its storage class; empty: none.
    pub class: String,
    /// Terms, of which a node must match one to reach it; `None`: every node does.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
}

impl Volume {
    /// Whether any claim may get it.
    pub fn is_free(&self) -> bool {
        self.claim.is_none()
    }

    /// Whether it will do for a claim of a class: it is free, or is the claim's own.
    fn will_do(&self, class: &str, claim: Option<&Key>) -> bool {
        let is_its_own = claim.is_some() && self.claim.as_ref() == claim;
        self.class == class && self.is_free() || is_its_own
    }
}

/// A storage class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorageClass {
    /// Whether its claims are bound once a pod that needs them has a node
    /// (`volumeBindingMode: WaitForFirstConsumer`).
    pub waits_for_consumer: bool,
    /// Whether volumes are made for its claims; if not, they get those that administrators make.
    pub provisions: bool,
    /// Terms, of which a node must match one for a volume to be made for it (`allowedTopologies`); `None`:
    /// every node will do.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
}

/// All claims, volumes and storage classes of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// Claims.
    pub claims: BTreeMap<Key, Claim>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Volume>,
    /// Storage classes by name.
    pub classes: BTreeMap<String, StorageClass>,
}

/// What a pod template asks of storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeNeeds {
    /// Names of the claims that its pods mount.
    pub claims: BTreeSet<String>,
    /// Storage classes of the volumes that are made with each pod (generic ephemeral volumes).
    pub classes: BTreeSet<String>,
}

/// What storage says to a pod template as of now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeAnswer {
    /// What keeps its pods from every node.
    pub missing: Vec<MissingVolume>,
    /// For each volume that not every node reaches: terms, of which a node must match one.
    pub nodes: Vec<Vec<NodeSelectorTerm>>,
    /// UIDs of its claims that are there.
    pub uids: BTreeSet<String>,
    /// Names of its claims that one pod at a time may mount.
    pub one_pod: BTreeSet<String>,
    /// What of its volumes only kube-scheduler knows.
    pub not_modelled: Option<String>,
}

/// What keeps a pod from every node, in kube-scheduler's words and with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum MissingVolume {
    /// The claim does not exist.
    #[error("persistentvolumeclaim {0:?} not found: create it in the namespace of the workload")]
    NoClaim(String),
    /// The claim is being deleted.
    #[error(
        "persistentvolumeclaim {0:?} is being deleted: create it again once it is gone, or mount another"
    )]
    Deleting(String),
    /// The claim has lost its volume.
    #[error(
        "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}: restore the volume, or mount \
         another claim"
    )]
    Lost {
        /// Name of the claim.
        claim: String,
        /// Name of the volume.
        volume: String,
    },
    /// The claim is to be bound at once and is not bound.
    #[error(
        "pod has unbound immediate PersistentVolumeClaims: persistentvolumeclaim {0:?} has no volume yet; its events say why"
    )]
    Unbound(String),
    /// The storage class of a claim that is not bound does not exist.
    #[error(
        "pod has unbound immediate PersistentVolumeClaims: storageclass.storage.k8s.io {class:?} of persistentvolumeclaim \
         {claim:?} not found: create one of them, or a volume for the claim"
    )]
    NoClassOfClaim {
        /// Name of the claim.
        claim: String,
        /// Name of the class.
        class: String,
    },
    /// The storage class of ephemeral volumes does not exist, and no volume has it.
    #[error(
        "storageclass.storage.k8s.io {0:?} of an ephemeral volume not found: create it, or name another in the template"
    )]
    NoClass(String),
    /// Nobody makes volumes of the storage class, and none is free.
    #[error(
        "node(s) didn't find available persistent volumes to bind: storageclass.storage.k8s.io {0:?} makes no volumes and \
         none of its volumes is free: create one"
    )]
    NoVolume(String),
    /// Several members have to run that mount a claim of which one pod at a time may.
    #[error(
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode: {members} members mount \
         persistentvolumeclaim {claim:?}: let one of them mount it, or use access mode ReadWriteMany"
    )]
    OnePod {
        /// Name of the claim.
        claim: String,
        /// Members that mount it.
        members: usize,
    },
}

impl From<&PodSpec> for VolumeNeeds {
    fn from(spec: &PodSpec) -> Self {
        let mut needs = Self::default();
        for volume in spec.volumes.iter().flatten() {
            if let Some(mounted) = &volume.persistent_volume_claim {
                needs.claims.insert(mounted.claim_name.clone());
            }
            let ephemeral = volume.ephemeral.as_ref();
            let template = ephemeral.and_then(|e| e.volume_claim_template.as_ref());
            // Without a name the default class counts, with an empty one there is none.
            let class = template.and_then(|t| t.spec.storage_class_name.as_ref());
            needs
                .classes
                .extend(class.filter(|c| !c.is_empty()).cloned());
        }
        needs
    }
}

impl VolumeNeeds {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.classes.is_empty()
    }
}

impl Storage {
    /// What there is to say to a template whose pods are in this namespace.
    pub fn answer(&self, namespace: &str, needs: &VolumeNeeds) -> VolumeAnswer {
        let mut out = VolumeAnswer::default();
        for name in &needs.claims {
            let key = Key::new(namespace, name);
            let Some(claim) = self.claims.get(&key) else {
                out.missing.push(MissingVolume::NoClaim(name.clone()));
                continue;
            };
            out.uids.insert(claim.uid.clone());
            if claim.one_pod {
                out.one_pod.insert(name.clone());
            }
            let volume = self.volumes.get(&claim.volume).filter(|_| claim.bound);
            out.nodes.extend(volume.and_then(|v| v.nodes.clone()));
            let missing = self.missing(name, claim);
            if missing.is_none() && !claim.bound {
                self.find(&claim.class, Some(&key), &mut out);
            }
            out.missing.extend(missing);
        }
        for class in &needs.classes {
            let statically = self.volumes.values().any(|v| v.class == *class);
            if !self.classes.contains_key(class) && !statically {
                out.missing.push(MissingVolume::NoClass(class.clone()));
            }
            self.find(class, None, &mut out);
        }
        out
    }

    /// Whether it matters to claims of a class which of its volumes are free: none is made for them, or
    /// not for every node.
    pub fn is_choosy(&self, class: &str) -> bool {
        let class = self.classes.get(class);
        class.is_some_and(|class| !class.provisions || class.nodes.is_some())
    }

    /// Whether there is a volume of a class that is free, beside the one of that name.
    pub fn has_free_beside(&self, class: &str, name: &str) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(|(other, volume)| volume.is_free() && volume.class == class && other != name)
    }

    /// Where a claim gets its volume that is bound once its pod has a node, as `FindPodVolumes` of
    /// kube-scheduler's volume binder says: one that is there and free, or else a new one on a node that its
    /// class allows. Which of those that are there will do is not known here.
    fn find(&self, name: &str, claim: Option<&Key>, out: &mut VolumeAnswer) {
        let Some(class) = self.classes.get(name).filter(|_| self.is_choosy(name)) else {
            return;
        };
        let mut volumes = self.volumes.values();
        if volumes.any(|volume| volume.will_do(name, claim)) {
            out.not_modelled = Some(format!(
                "claim for one of the volumes of storageclass {name:?}"
            ));
        } else if class.provisions {
            out.nodes.extend(class.nodes.clone());
        } else {
            out.missing.push(MissingVolume::NoVolume(name.to_owned()));
        }
    }

    /// As `GetPodVolumeClaims` of kube-scheduler's volume binder tells the claims apart.
    fn missing(&self, name: &str, claim: &Claim) -> Option<MissingVolume> {
        let name = name.to_owned();
        if claim.deleting {
            return Some(MissingVolume::Deleting(name));
        }
        if claim.lost || (claim.bound && !self.volumes.contains_key(&claim.volume)) {
            return Some(MissingVolume::Lost {
                claim: name,
                volume: claim.volume.clone(),
            });
        }
        if claim.bound {
            return None;
        }
        match self.classes.get(&claim.class) {
            // One that names its volume is bound at once, whatever its class says.
            Some(class) if class.waits_for_consumer && claim.volume.is_empty() => None,
            None if !claim.class.is_empty() => Some(MissingVolume::NoClassOfClaim {
                claim: name,
                class: claim.class.clone(),
            }),
            _ => Some(MissingVolume::Unbound(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn storage() -> Storage {
        let claim = |bound: bool, volume: &str, class: &str| Claim {
            uid: "u".into(),
            bound,
            volume: volume.into(),
            class: class.into(),
            ..Claim::default()
        };
        let deleting = Claim {
            deleting: true,
            ..claim(true, "here", "")
        };
        let claims = [
            ("bound", claim(true, "here", "")),
            ("zonal", claim(true, "zonal", "")),
            ("lost", claim(true, "gone", "")),
            ("deleting", deleting),
            ("later", claim(false, "", "later")),
            ("named", claim(false, "here", "later")),
            ("now", claim(false, "", "now")),
            ("no-class", claim(false, "", "none")),
            ("without", claim(false, "", "")),
        ];
        let zone =
            json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
        let volume = |nodes| Volume {
            nodes,
            class: "static".into(),
            ..Volume::default()
        };
        let classes = [("later", true), ("now", false)];
        Storage {
            claims: claims.map(|(n, c)| (Key::new("ml", n), c)).into(),
            volumes: [
                ("here".to_owned(), volume(None)),
                (
                    "zonal".to_owned(),
                    volume(serde_json::from_value(zone).unwrap()),
                ),
            ]
            .into(),
            classes: classes
                .map(|(n, waits_for_consumer)| {
                    let class = StorageClass {
                        waits_for_consumer,
                        provisions: true,
                        nodes: None,
                    };
                    (n.to_owned(), class)
                })
                .into(),
        }
    }

    fn answer(claim: &str) -> VolumeAnswer {
        let needs = VolumeNeeds {
            claims: [claim.to_owned()].into(),
            ..VolumeNeeds::default()
        };
        storage().answer("ml", &needs)
    }

    #[test]
    fn a_claim_holds_its_pods_unless_it_is_bound_or_waits_for_its_first_consumer() {
        for (claim, missing) in [
            ("bound", None),
            ("zonal", None),
            ("later", None),
            ("none", Some(MissingVolume::NoClaim("none".into()))),
            ("deleting", Some(MissingVolume::Deleting("deleting".into()))),
            ("named", Some(MissingVolume::Unbound("named".into()))),
            ("now", Some(MissingVolume::Unbound("now".into()))),
            ("without", Some(MissingVolume::Unbound("without".into()))),
            (
                "lost",
                Some(MissingVolume::Lost {
                    claim: "lost".into(),
                    volume: "gone".into(),
                }),
            ),
            (
                "no-class",
                Some(MissingVolume::NoClassOfClaim {
                    claim: "no-class".into(),
                    class: "none".into(),
                }),
            ),
        ] {
            let missing: Vec<MissingVolume> = missing.into_iter().collect();
            assert_eq!(answer(claim).missing, missing, "{claim}");
        }
    }

    #[test]
    fn a_bound_volume_says_which_nodes_reach_it() {
        assert_eq!(
            (answer("bound").nodes.len(), answer("zonal").nodes.len()),
            (0, 1)
        );
    }

    #[test]
    fn an_ephemeral_volume_needs_its_class_or_a_volume_that_has_it() {
        for (class, found) in [("later", true), ("static", true), ("none", false)] {
            let spec = json!({"containers": [], "volumes": [{"name": "scratch", "ephemeral":
                {"volumeClaimTemplate": {"spec": {"storageClassName": class}}}}]});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let missing = storage().answer("ml", &VolumeNeeds::from(&spec)).missing;
            assert_eq!(missing.is_empty(), found, "{class}");
        }
    }

    /// The answer to a claim that waits for its pod, of a class that makes volumes or does not, in zone a
    /// only or anywhere, of which there are volumes for these claims, or free ones.
    fn waiting(provisions: bool, zonal: bool, volumes: &[Option<&str>]) -> VolumeAnswer {
        let mut storage = storage();
        let terms = storage.volumes["zonal"].nodes.clone();
        let class = StorageClass {
            waits_for_consumer: true,
            provisions,
            nodes: terms.filter(|_| zonal),
        };
        storage.classes.insert("later".into(), class);
        for claim in volumes {
            let volume = Volume {
                claim: claim.map(|name| Key::new("ml", name)),
                class: "later".into(),
                nodes: None,
            };
            storage.volumes.insert("local".into(), volume);
        }
        let needs = VolumeNeeds {
            claims: ["later".to_owned()].into(),
            ..VolumeNeeds::default()
        };
        storage.answer("ml", &needs)
    }

    #[test]
    fn a_claim_that_waits_for_its_pod_gets_a_volume_that_is_free_or_a_new_one_where_its_class_allows_it()
     {
        let (none, free): (&[Option<&str>], &[Option<&str>]) = (&[], &[None]);
        let (its_own, of_others): (&[Option<&str>], &[Option<&str>]) =
            (&[Some("later")], &[Some("other")]);
        // Whether it is held, bound to nodes, and known to kube-scheduler alone.
        for (provisions, zonal, volumes, expected) in [
            (true, false, none, (false, false, false)),
            (true, false, free, (false, false, false)),
            (true, true, none, (false, true, false)),
            (true, true, of_others, (false, true, false)),
            (true, true, free, (false, false, true)),
            (false, false, none, (true, false, false)),
            (false, false, of_others, (true, false, false)),
            (false, false, free, (false, false, true)),
            (false, false, its_own, (false, false, true)),
        ] {
            let answer = waiting(provisions, zonal, volumes);
            let held = answer.missing == [MissingVolume::NoVolume("later".into())];
            assert_eq!(held, !answer.missing.is_empty());
            let is = (
                held,
                !answer.nodes.is_empty(),
                answer.not_modelled.is_some(),
            );
            assert_eq!(is, expected, "{provisions} {zonal} {volumes:?}");
        }
    }
}
