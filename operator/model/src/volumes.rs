//! Volume claims as kube-scheduler's `VolumeBinding` plugin evaluates them: reasons that a pod fits
//! no node, and nodes that reach its volumes.

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
    pub uid: String,
    pub deleting: bool,
    pub lost: bool,
    /// True if binding is complete.
    pub bound: bool,
    /// `spec.volumeName`; empty before the choice of a volume.
    pub volume: String,
    /// Name of its storage class; empty: none.
    pub class: String,
    /// True if only one pod may mount it (access mode `ReadWriteOncePod`).
    pub one_pod: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    pub claim: Option<Key>,
    /// Name of its storage class; empty: none.
    pub class: String,
    /// Alternative node terms. `None`: every node reaches it.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
}

impl Volume {
    /// True if any claim may use it.
    pub fn is_free(&self) -> bool {
        self.claim.is_none()
    }

    /// True if a claim of the class may use it: it is free or reserved for the claim.
    fn will_do(&self, class: &str, claim: Option<&Key>) -> bool {
        let is_its_own = claim.is_some() && self.claim.as_ref() == claim;
        self.class == class && self.is_free() || is_its_own
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorageClass {
    /// True if claims are bound after their pods are scheduled (`WaitForFirstConsumer`).
    pub waits_for_consumer: bool,
    /// True if volumes are provisioned. Otherwise administrators create them.
    pub provisions: bool,
    /// Alternative node terms of provisioned volumes (`allowedTopologies`). `None`: every node.
    pub nodes: Option<Vec<NodeSelectorTerm>>,
}

#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub claims: BTreeMap<Key, Claim>,
    pub volumes: BTreeMap<String, Volume>,
    pub classes: BTreeMap<String, StorageClass>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeNeeds {
    pub claims: BTreeSet<String>,
    /// Storage classes of generic ephemeral volumes, which are created with each pod.
    pub classes: BTreeSet<String>,
}

/// Result of a check of a pod template against the current storage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeCheck {
    pub missing: Vec<MissingVolume>,
    /// For each volume with limited reach: alternative node terms.
    pub nodes: Vec<Vec<NodeSelectorTerm>>,
    /// UIDs of its existing claims.
    pub uids: BTreeSet<String>,
    /// Names of its `ReadWriteOncePod` claims.
    pub one_pod: BTreeSet<String>,
    /// Property of its volumes that only kube-scheduler evaluates.
    pub not_modelled: Option<String>,
}

/// Reason that a pod fits no node, worded as in kube-scheduler, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum MissingVolume {
    #[error("persistentvolumeclaim {0:?} not found: create it in the namespace of the workload")]
    NoClaim(String),
    #[error(
        "persistentvolumeclaim {0:?} is being deleted: recreate the claim after its deletion, or mount another claim"
    )]
    Deleting(String),
    #[error(
        "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}: restore the volume, or mount \
         another claim"
    )]
    Lost { claim: String, volume: String },
    /// The claim has immediate binding and is not bound.
    #[error(
        "pod has unbound immediate PersistentVolumeClaims: persistentvolumeclaim {0:?} has no volume yet; see the events of the claim"
    )]
    Unbound(String),
    /// The storage class of an unbound claim does not exist.
    #[error(
        "pod has unbound immediate PersistentVolumeClaims: storageclass.storage.k8s.io {class:?} of persistentvolumeclaim \
         {claim:?} not found: create the class, or a volume for the claim"
    )]
    NoClassOfClaim { claim: String, class: String },
    /// The storage class of ephemeral volumes does not exist, and no volume has it.
    #[error(
        "storageclass.storage.k8s.io {0:?} of an ephemeral volume not found: create the class, or name another one in the template"
    )]
    NoClass(String),
    /// The storage class has no provisioner and no free volume.
    #[error(
        "node(s) didn't find available persistent volumes to bind: storageclass.storage.k8s.io {0:?} provisions no \
         volumes and has no free volume: create a volume"
    )]
    NoVolume(String),
    /// Several required members mount a `ReadWriteOncePod` claim.
    #[error(
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode: {members} members mount \
         persistentvolumeclaim {claim:?}: mount the claim in one member only, or use access mode ReadWriteMany"
    )]
    OnePod {
        claim: String,
        /// Number of members that mount it.
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
            // Without a name, the default class is used; an empty name means no class.
            let class = template.and_then(|t| t.spec.storage_class_name.as_ref());
            needs
                .classes
                .extend(class.filter(|c| !c.is_empty()).cloned());
        }
        needs
    }
}

impl VolumeNeeds {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.classes.is_empty()
    }
}

impl Storage {
    pub fn check(&self, namespace: &str, needs: &VolumeNeeds) -> VolumeCheck {
        let mut out = VolumeCheck::default();
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

    /// True if claims of a class depend on free volumes, because it has no provisioner or limits
    /// the nodes.
    pub fn is_choosy(&self, class: &str) -> bool {
        let class = self.classes.get(class);
        class.is_some_and(|class| !class.provisions || class.nodes.is_some())
    }

    /// True if a class has a free volume other than `name`.
    pub fn has_free_beside(&self, class: &str, name: &str) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(|(other, volume)| volume.is_free() && volume.class == class && other != name)
    }

    /// Volume of a claim that is bound after its pod is scheduled, as in `FindPodVolumes` of
    /// kube-scheduler's volume binder: a free volume, or a new volume on a permitted node. Only
    /// kube-scheduler knows which free volume fits.
    fn find(&self, name: &str, claim: Option<&Key>, out: &mut VolumeCheck) {
        let Some(class) = self.classes.get(name).filter(|_| self.is_choosy(name)) else {
            return;
        };
        let mut volumes = self.volumes.values();
        if volumes.any(|volume| volume.will_do(name, claim)) {
            out.not_modelled = Some(format!("claim for a volume of storageclass {name:?}"));
        } else if class.provisions {
            out.nodes.extend(class.nodes.clone());
        } else {
            out.missing.push(MissingVolume::NoVolume(name.to_owned()));
        }
    }

    /// As `GetPodVolumeClaims` of kube-scheduler's volume binder.
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
            // A claim with a volume name is bound at once, regardless of its class.
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

    fn check(claim: &str) -> VolumeCheck {
        let needs = VolumeNeeds {
            claims: [claim.to_owned()].into(),
            ..VolumeNeeds::default()
        };
        storage().check("ml", &needs)
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
            assert_eq!(check(claim).missing, missing, "{claim}");
        }
    }

    #[test]
    fn a_bound_volume_says_which_nodes_reach_it() {
        assert_eq!(
            (check("bound").nodes.len(), check("zonal").nodes.len()),
            (0, 1)
        );
    }

    #[test]
    fn an_ephemeral_volume_needs_its_class_or_a_volume_that_has_it() {
        for (class, found) in [("later", true), ("static", true), ("none", false)] {
            let spec = json!({"containers": [], "volumes": [{"name": "scratch", "ephemeral":
                {"volumeClaimTemplate": {"spec": {"storageClassName": class}}}}]});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let missing = storage().check("ml", &VolumeNeeds::from(&spec)).missing;
            assert_eq!(missing.is_empty(), found, "{class}");
        }
    }

    /// Answer to a claim with delayed binding. The class may provision volumes, and may be limited
    /// to zone a. Existing volumes are reserved for these claims, or free.
    fn waiting(provisions: bool, zonal: bool, volumes: &[Option<&str>]) -> VolumeCheck {
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
        storage.check("ml", &needs)
    }

    #[test]
    fn a_claim_bound_to_its_first_consumer_takes_a_free_volume_or_a_provisioned_volume() {
        let (none, free): (&[Option<&str>], &[Option<&str>]) = (&[], &[None]);
        let (its_own, of_others): (&[Option<&str>], &[Option<&str>]) =
            (&[Some("later")], &[Some("other")]);
        // Whether it is held, limited to nodes, and only known to kube-scheduler.
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
            let check = waiting(provisions, zonal, volumes);
            let held = check.missing == [MissingVolume::NoVolume("later".into())];
            assert_eq!(held, !check.missing.is_empty());
            let is = (held, !check.nodes.is_empty(), check.not_modelled.is_some());
            assert_eq!(is, expected, "{provisions} {zonal} {volumes:?}");
        }
    }
}
