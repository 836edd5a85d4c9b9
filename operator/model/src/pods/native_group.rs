//! Groups of kube-scheduler (`scheduling.k8s.io`): each `PodGroup` and its ancestors, which are
//! `CompositePodGroup`s.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_api::key::Key;

/// Most levels of a tree, the `PodGroup` included (`MaxTreeDepth` of kube-scheduler).
const LEVELS: usize = 4;
/// Prefix of the keys of units that are a `CompositePodGroup`. Names of `PodGroup`s have no slash.
const COMPOSITE: &str = "compositepodgroups/";

/// Kind of a native group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeKind {
    PodGroup,
    CompositePodGroup,
}

/// A group of kube-scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeGroup {
    /// True for policy `gang`; false for `basic`, whose pods or groups are scheduled independently.
    pub gang: bool,
    /// True if its pods are evicted together, which kube-scheduler honours for basic groups too.
    pub all: bool,
    /// Name of the `CompositePodGroup` that contains it.
    pub parent: Option<Arc<str>>,
    /// Priority of all its pods for preemption, if it has no parent.
    pub priority: Option<i32>,
}

/// Foreign pods that restart or wait when one of them is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignUnit<'s> {
    /// Unique key within the namespace.
    pub key: &'s str,
    /// True if the pods are evicted together or not at all.
    pub whole: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct NativeGroups {
    pod_groups: BTreeMap<Key, NativeGroup>,
    /// With the keys of their units.
    composites: BTreeMap<Key, (Arc<str>, NativeGroup)>,
}

impl NativeGroups {
    /// Sets or removes (`None`) a group.
    pub fn set(&mut self, kind: NativeKind, key: &Key, group: Option<NativeGroup>) {
        match (kind, group) {
            (NativeKind::PodGroup, Some(group)) => {
                self.pod_groups.insert(key.clone(), group);
            }
            (NativeKind::PodGroup, None) => {
                self.pod_groups.remove(key);
            }
            (NativeKind::CompositePodGroup, Some(group)) => {
                let unit = format!("{COMPOSITE}{}", key.name).into();
                self.composites.insert(key.clone(), (unit, group));
            }
            (NativeKind::CompositePodGroup, None) => {
                self.composites.remove(key);
            }
        }
    }

    pub fn get(&self, kind: NativeKind, key: &Key) -> Option<&NativeGroup> {
        match kind {
            NativeKind::PodGroup => self.pod_groups.get(key),
            NativeKind::CompositePodGroup => self.composites.get(key).map(|(_, group)| group),
        }
    }

    pub fn keys(&self, kind: NativeKind) -> Vec<Key> {
        match kind {
            NativeKind::PodGroup => self.pod_groups.keys().cloned().collect(),
            NativeKind::CompositePodGroup => self.composites.keys().cloned().collect(),
        }
    }

    /// Unit of a pod of this `PodGroup`: the highest group that evicts its pods together, else the
    /// highest gang. An unknown group is evicted whole. `None`: the pod is independent.
    pub fn unit<'s>(&'s self, namespace: &Arc<str>, name: &'s Arc<str>) -> Option<ForeignUnit<'s>> {
        let tree = self.tree(namespace, name);
        if tree.is_empty() {
            let key = name;
            return Some(ForeignUnit { key, whole: true });
        }
        if let Some(parent) = self.missing_parent(namespace, &tree) {
            let (key, whole) = (parent, true);
            return Some(ForeignUnit { key, whole });
        }
        let unit = |whole: bool, is: fn(&NativeGroup) -> bool| {
            let highest = tree.iter().rev().find(|(_, group)| is(group))?;
            let key = highest.0;
            Some(ForeignUnit { key, whole })
        };
        unit(true, |group| group.all).or_else(|| unit(false, |group| group.gang))
    }

    /// The parent of the highest known group, if it is named but unknown.
    fn missing_parent<'s>(
        &self,
        namespace: &Arc<str>,
        tree: &[(&str, &'s NativeGroup)],
    ) -> Option<&'s str> {
        let parent = tree.last()?.1.parent.as_ref()?;
        let key = Key {
            namespace: Arc::clone(namespace),
            name: Arc::clone(parent),
        };
        (!self.composites.contains_key(&key)).then_some(&**parent)
    }

    /// Priority of the highest known group of the pods of this `PodGroup`.
    pub fn priority(&self, namespace: &Arc<str>, name: &Arc<str>) -> Option<i32> {
        self.tree(namespace, name).last()?.1.priority
    }

    /// A `PodGroup` and its known ancestors, with the keys of their units.
    fn tree<'s>(
        &'s self,
        namespace: &Arc<str>,
        name: &'s Arc<str>,
    ) -> Vec<(&'s str, &'s NativeGroup)> {
        let key = |name: &Arc<str>| Key {
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
        };
        let mut tree: Vec<(&str, &NativeGroup)> = Vec::new();
        tree.extend(
            self.pod_groups
                .get(&key(name))
                .map(|group| (&**name, group)),
        );
        while let Some((_, group)) = tree.last().filter(|_| tree.len() < LEVELS)
            && let Some(parent) = &group.parent
            && let Some((unit, parent)) = self.composites.get(&key(parent))
        {
            tree.push((unit, parent));
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(gang: bool, all: bool, parent: Option<&str>, priority: i32) -> NativeGroup {
        NativeGroup {
            gang,
            all,
            parent: parent.map(Arc::from),
            priority: Some(priority),
        }
    }

    fn known(groups: &[(NativeKind, &str, NativeGroup)]) -> NativeGroups {
        let mut all = NativeGroups::default();
        for (kind, name, group) in groups {
            all.set(*kind, &Key::new("ml", *name), Some(group.clone()));
        }
        all
    }

    /// Unit of a pod of `PodGroup` `pg`, and its priority.
    fn unit(groups: &[(NativeKind, &str, NativeGroup)]) -> (Option<(String, bool)>, Option<i32>) {
        let all = known(groups);
        let (namespace, name): (Arc<str>, Arc<str>) = ("ml".into(), "pg".into());
        let unit = all.unit(&namespace, &name);
        let unit = unit.map(|unit| (unit.key.to_owned(), unit.whole));
        (unit, all.priority(&namespace, &name))
    }

    #[test]
    fn a_pod_group_without_ancestors_is_a_unit_unless_it_is_basic_and_single() {
        use NativeKind::PodGroup;
        for (gang, all, expected) in [
            (true, true, Some(("pg".to_owned(), true))),
            (false, true, Some(("pg".to_owned(), true))),
            (true, false, Some(("pg".to_owned(), false))),
            (false, false, None),
        ] {
            let found = unit(&[(PodGroup, "pg", group(gang, all, None, 7))]);
            assert_eq!(found, (expected, Some(7)));
        }
        assert_eq!(unit(&[]), (Some(("pg".to_owned(), true)), None));
    }

    #[test]
    fn the_highest_ancestor_with_mode_all_is_the_unit_and_the_root_has_the_priority() {
        use NativeKind::{CompositePodGroup, PodGroup};
        let leaf = (PodGroup, "pg", group(true, true, Some("replica"), 1));
        let replica = |all| {
            (
                CompositePodGroup,
                "replica",
                group(true, all, Some("set"), 2),
            )
        };
        let set = |gang, all| (CompositePodGroup, "set", group(gang, all, None, 3));
        let key = |name: &str, whole| Some((name.to_owned(), whole));
        let (of_set, of_replica) = ("compositepodgroups/set", "compositepodgroups/replica");
        for (groups, expected, priority) in [
            (
                vec![leaf.clone(), replica(true), set(true, true)],
                key(of_set, true),
                3,
            ),
            (
                vec![leaf.clone(), replica(true), set(true, false)],
                key(of_replica, true),
                3,
            ),
            (
                vec![leaf.clone(), replica(false), set(true, false)],
                key("pg", true),
                3,
            ),
            // An unknown group could have mode `all`.
            (vec![leaf, set(true, true)], key("replica", true), 1),
        ] {
            assert_eq!(unit(&groups), (expected, Some(priority)));
        }
    }

    #[test]
    fn pods_of_a_single_gang_of_groups_restart_together() {
        use NativeKind::{CompositePodGroup, PodGroup};
        let leaf = (PodGroup, "pg", group(false, false, Some("set"), 1));
        let set = |gang| (CompositePodGroup, "set", group(gang, false, None, 3));
        let whole = Some(("compositepodgroups/set".to_owned(), false));
        assert_eq!(unit(&[leaf.clone(), set(true)]).0, whole);
        assert_eq!(unit(&[leaf, set(false)]).0, None);
    }

    #[test]
    fn a_cycle_of_composites_ends() {
        use NativeKind::{CompositePodGroup, PodGroup};
        let leaf = (PodGroup, "pg", group(true, false, Some("a"), 1));
        let a = (CompositePodGroup, "a", group(true, false, Some("b"), 2));
        let b = (CompositePodGroup, "b", group(true, false, Some("a"), 3));
        let found = unit(&[leaf, a, b]);
        assert_eq!(found.0, Some(("compositepodgroups/a".to_owned(), false)));
    }
}
