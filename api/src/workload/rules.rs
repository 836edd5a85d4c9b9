//! CEL rules of a workload. Each message states what is allowed. Rules with `oldSelf` are
//! transition rules, which are not evaluated on create.

use kube::core::cel::{Message, Rule};

/// Field of an error. Without one, errors of rules at the root name the field `<nil>`.
const NAME: &str = ".metadata.name";
const REPLICAS: &str = ".replicas";

/// Allows any change of a suspended workload, or of a workload that this change suspends.
macro_rules! or_suspended {
    ($($rule:expr),+ $(,)?) => {
        concat!("oldSelf.suspend || self.suspend || (", $($rule,)+ ")")
    };
}

/// Expression for the number of replicas of a group `g`.
macro_rules! replicas_of {
    ($spec:literal) => {
        concat!(
            "(has(g.replicas) ? g.replicas : has(",
            $spec,
            ".replicas) ? ",
            $spec,
            ".replicas : 1)"
        )
    };
}

/// Expression for the levels of the topology, in their long form.
macro_rules! topology_of {
    ($spec:literal) => {
        concat!(
            "(!has(",
            $spec,
            ".scheduling.topology) ? [] : has(",
            $spec,
            ".scheduling.topology.levels) ? ",
            $spec,
            ".scheduling.topology.levels.map(l, [l.key, l.mode, l.scope]) : [[has(",
            $spec,
            ".scheduling.topology.key) ? ",
            $spec,
            ".scheduling.topology.key : '', has(",
            $spec,
            ".scheduling.topology.mode) ? ",
            $spec,
            ".scheduling.topology.mode : 'Required', has(",
            $spec,
            ".scheduling.topology.scope) ? ",
            $spec,
            ".scheduling.topology.scope : 'Gang']])"
        )
    };
}

pub(super) fn one_level_or_several() -> Rule {
    Rule::new("has(self.levels) ? !has(self.key) && !has(self.mode) && !has(self.scope) : has(self.key)")
        .message("scheduling.topology needs levels, 1 to 4, or key for one level; with levels, set key, mode and scope in each level")
}

pub(super) fn levels_differ() -> Rule {
    Rule::new("!has(self.levels) || self.levels.all(l, self.levels.exists_one(o, o.key == l.key && o.scope == l.scope))")
        .message(Message::Expression(
            "'scheduling.topology.levels repeats key ' + self.levels.filter(l, !self.levels.exists_one(o, o.key == l.key && o.scope == l.scope))[0].key + ': a key may occur once with scope Gang and once with scope Replica'".into(),
        ))
}

pub(super) fn name_is_a_label() -> Rule {
    Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name must be a DNS label that starts with a letter: it names the headless Service and the hostnames",
    )
    .field_path(NAME)
}

/// Hostnames are `<workload>-<group>-<replica>-<index>`. The digits of the counts are an upper
/// bound for replica and index.
pub(super) fn hostnames_fit() -> Rule {
    Rule::new(concat!(
        "self.spec.groups.all(g, size(self.metadata.name) + size(g.name) + size(string(",
        replicas_of!("self.spec"),
        ")) + size(string(g.size)) + 3 <= 63)"
    ))
    .message("metadata.name is too long: hostnames <name>-<group>-<replica>-<index> are limited to 63 characters")
    .field_path(NAME)
}

pub(super) fn replicas_count_a_group() -> Rule {
    Rule::new("!has(self.replicas) || self.groups.exists(g, !has(g.replicas))")
        .message("replicas counts the group without groups[].replicas, and all groups have them; remove them from the group to scale, or change groups[].replicas instead")
        .field_path(REPLICAS)
}

pub(super) fn replicas_count_one_group() -> Rule {
    Rule::new("!has(self.replicas) || size(self.groups.filter(g, !has(g.replicas))) <= 1")
        .message("replicas counts one group, and several have no groups[].replicas; set them in all groups but the group to scale")
        .field_path(REPLICAS)
}

pub(super) fn member_limit() -> Rule {
    Rule::new(concat!(
        "self.groups.map(g, ",
        replicas_of!("self"),
        " * g.size).sum() <= 20000"
    ))
    .message("replicas x size over all groups must be at most 20000 members")
}

/// Each gang and each restart domain has an entry in the status, and the size of an object is
/// limited.
pub(super) fn domain_limit() -> Rule {
    Rule::new(concat!("(self.failurePolicy.restartScope != 'Replica' && (self.scheduling.policy == 'Basic' || self.scheduling.gang.scope != 'Replica')) || self.groups.map(g, ", replicas_of!("self"), ").sum() <= 500"))
        .message("replicas over all groups must be at most 500 if scheduling.gang.scope or failurePolicy.restartScope is Replica")
}

pub(super) fn basic_is_single() -> Rule {
    Rule::new("self.scheduling.policy != 'Basic' || !has(self.scheduling.disruptionMode) || self.scheduling.disruptionMode == 'Single'")
        .message("scheduling.disruptionMode All needs scheduling.policy Gang: with policy Basic each pod is scheduled by itself (KEP-5710)")
}

pub(super) fn progress_needs_gang() -> Rule {
    Rule::new("self.scheduling.policy != 'Basic' || !has(self.failurePolicy.progress)")
        .message("failurePolicy.progress needs scheduling.policy Gang: members of policy Basic have no supervisor")
}

pub(super) fn checkpoint_needs_gang() -> Rule {
    Rule::new("self.scheduling.policy != 'Basic' || !has(self.checkpoint)")
        .message("checkpoint.onRequest needs scheduling.policy Gang: members of policy Basic have no supervisor")
}

pub(super) fn checkpoint_needs_supervisor() -> Rule {
    Rule::new("!has(self.checkpoint) || self.failurePolicy.inPlace.supervisor != 'Never'")
        .message("checkpoint.onRequest is delivered by the supervisor: failurePolicy.inPlace.supervisor must be Auto")
}

pub(super) fn min_count_fits() -> Rule {
    Rule::new(concat!(
        "!has(self.scheduling.gang.minCount) || self.scheduling.gang.minCount <= self.groups.map(g, ",
        replicas_of!("self"),
        " * g.size).sum()"
    ))
    .message("scheduling.gang.minCount must be at most the number of members, replicas x size over all groups")
}

pub(super) fn group_min_count_fits() -> Rule {
    Rule::new(concat!(
        "self.groups.all(g, !has(g.minCount) || g.minCount <= ",
        replicas_of!("self"),
        " * g.size)"
    ))
    .message("groups[].minCount must be at most replicas x size of the group")
}

pub(super) fn min_count_scope() -> Rule {
    Rule::new("!has(self.scheduling.gang.minCount) || self.scheduling.gang.scope == 'Workload'")
        .message("scheduling.gang.minCount needs gang.scope Workload; with scope Group set groups[].minCount")
}

pub(super) fn group_min_count_scope() -> Rule {
    Rule::new("self.scheduling.gang.scope == 'Group' || self.groups.all(g, !has(g.minCount))")
        .message("groups[].minCount needs scheduling.gang.scope Group")
}

pub(super) fn depends_on_needs_scope() -> Rule {
    Rule::new("self.scheduling.policy == 'Basic' || self.scheduling.gang.scope != 'Workload' || self.groups.all(g, size(g.dependsOn) == 0)")
        .message("dependsOn needs scheduling.gang.scope Group or Replica: a gang of the whole workload would wait for itself")
}

pub(super) fn depends_on_earlier() -> Rule {
    // Of the two groups, the dependency must come first in the list. An unknown name leaves only
    // the dependent group.
    Rule::new("self.groups.all(g, g.dependsOn.all(d, self.groups.filter(e, e.name == d.group || e.name == g.name)[0].name == d.group))")
        .message("dependsOn may only name groups that precede this group in spec.groups")
}

pub(super) fn no_system_class() -> Rule {
    Rule::new("!has(self.priorityClassName) || !self.priorityClassName.startsWith('system-')").message(
        "priorityClassName must name a class for workloads: the classes system-* belong to the cluster's own components",
    )
}

pub(super) fn success_groups_exist() -> Rule {
    Rule::new("self.successPolicy.groups.all(n, self.groups.exists(g, g.name == n))")
        .message("successPolicy.groups must name entries of spec.groups")
}

pub(super) fn rule_groups_exist() -> Rule {
    Rule::new("self.failurePolicy.rules.all(r, r.match.groups.all(n, self.groups.exists(g, g.name == n)))")
        .message("failurePolicy.rules[].match.groups must name entries of spec.groups")
}

pub(super) fn coordinator_exists() -> Rule {
    Rule::new(concat!("!has(self.network.coordinator) || self.groups.exists(g, g.name == self.network.coordinator.group && self.network.coordinator.replica < ", replicas_of!("self"), " && self.network.coordinator.index < g.size)"))
        .message("network.coordinator must name a member: an entry of spec.groups, replica < replicas, index < size")
}

pub(super) fn group_names_fixed() -> Rule {
    Rule::new("self.groups.map(g, g.name) == oldSelf.groups.map(g, g.name)")
        .message("groups cannot be added, removed, renamed or reordered; create another workload")
}

pub(super) fn managed_by_fixed() -> Rule {
    Rule::new("self.managedBy == oldSelf.managedBy").message("managedBy is immutable")
}

pub(super) fn templates_fixed() -> Rule {
    Rule::new(or_suspended!(
        "self.groups.map(g, g.template) == oldSelf.groups.map(g, g.template)"
    ))
    .message("groups[].template is immutable while running; set spec.suspend: true to change it")
}

pub(super) fn sizes_fixed() -> Rule {
    Rule::new(or_suspended!(
        "self.groups.map(g, g.size) == oldSelf.groups.map(g, g.size) && self.groups.map(g, g.dependsOn) == oldSelf.groups.map(g, g.dependsOn)"
    ))
    .message("groups[].size and dependsOn are immutable while running (replicas and minCount may change); set spec.suspend: true to change them")
}

pub(super) fn scheduling_fixed() -> Rule {
    Rule::new(or_suspended!(
        "self.scheduling.policy == oldSelf.scheduling.policy && self.scheduling.gang.scope == oldSelf.scheduling.gang.scope && has(self.scheduling.disruptionMode) == has(oldSelf.scheduling.disruptionMode) && (!has(self.scheduling.disruptionMode) || self.scheduling.disruptionMode == oldSelf.scheduling.disruptionMode) && has(self.scheduling.preemptionPolicy) == has(oldSelf.scheduling.preemptionPolicy) && (!has(self.scheduling.preemptionPolicy) || self.scheduling.preemptionPolicy == oldSelf.scheduling.preemptionPolicy) && has(self.scheduling.backend) == has(oldSelf.scheduling.backend) && (!has(self.scheduling.backend) || self.scheduling.backend == oldSelf.scheduling.backend) && ", topology_of!("self"), " == ", topology_of!("oldSelf")
    ))
    .message("scheduling is immutable while running, except minCount and timeouts; set spec.suspend: true to change it")
}

pub(super) fn failure_rules_fixed() -> Rule {
    Rule::new(or_suspended!(
        "self.failurePolicy.rules == oldSelf.failurePolicy.rules && self.failurePolicy.restartScope == oldSelf.failurePolicy.restartScope && self.failurePolicy.inPlace.withoutSupervisor == oldSelf.failurePolicy.inPlace.withoutSupervisor && self.failurePolicy.inPlace.supervisor == oldSelf.failurePolicy.inPlace.supervisor && self.failurePolicy.inPlace.sharedMemory == oldSelf.failurePolicy.inPlace.sharedMemory && self.failurePolicy.inPlace.stopGraceSeconds == oldSelf.failurePolicy.inPlace.stopGraceSeconds"
    ))
    .message("failurePolicy rules, restartScope, supervisor, withoutSupervisor, sharedMemory and stopGraceSeconds are compiled into the pods and immutable while running (limits and deadlines may change); set spec.suspend: true to change them")
}

pub(super) fn success_fixed() -> Rule {
    Rule::new(or_suspended!("self.successPolicy == oldSelf.successPolicy"))
        .message("successPolicy is immutable while running; set spec.suspend: true to change it")
}

pub(super) fn network_fixed() -> Rule {
    Rule::new(or_suspended!(
        "self.network.world == oldSelf.network.world && self.network.publishNotReadyAddresses == oldSelf.network.publishNotReadyAddresses && has(self.network.subdomain) == has(oldSelf.network.subdomain) && (!has(self.network.subdomain) || self.network.subdomain == oldSelf.network.subdomain) && has(self.network.coordinator) == has(oldSelf.network.coordinator) && (!has(self.network.coordinator) || self.network.coordinator == oldSelf.network.coordinator) && (has(self.network.port) ? self.network.port : 29500) == (has(oldSelf.network.port) ? oldSelf.network.port : 29500)"
    ))
        .message("network is immutable while running; set spec.suspend: true to change it")
}

pub(super) fn priority_fixed() -> Rule {
    Rule::new(or_suspended!("has(self.priorityClassName) == has(oldSelf.priorityClassName) && (!has(self.priorityClassName) || self.priorityClassName == oldSelf.priorityClassName)"))
        .message("priorityClassName is immutable while running; set spec.suspend: true to change it")
}
