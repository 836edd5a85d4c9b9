//! Checks of the installation. Each check gives one line with the page to read.

mod autoscaler;
mod canary;
mod kueue;
mod render;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_api::native_group::{NATIVE_GROUP, NATIVE_VERSION};
use lockstep_api::words::count;
use serde::Serialize;

pub use self::canary::{
    Canary, manifest as canary_manifest, not_allowed as canary_not_allowed,
    not_created as canary_not_created,
};
use crate::agents::{AgentReport, AgentState};
use crate::docs::page;
use crate::doctor_facts::{BudgetFacts, InstallFacts, NodeFacts, PolicyFacts, RESOURCES};
use crate::view::age::age;

/// First minor version of Kubernetes with admission policies.
const POLICIES_SINCE: u32 = 30;
/// First minor version whose kube-scheduler keeps nominations by other components (KEP-5278).
const NOMINATIONS_SINCE: u32 = 34;
/// First minor version whose kubelets restart containers in place.
const IN_PLACE_SINCE: u32 = 35;
/// Most names in one line.
const NAMED: usize = 3;

const INSTALL: &str = page!("README.md#install");
const DOCTOR: &str = page!("docs/cli.md#doctor");
const AGENTS: &str = page!("docs/architecture.md");
const NATIVE: &str = page!("docs/scheduling.md#native-scheduling-objects");
const BUDGETS: &str = page!("docs/tenants.md#disruption-budgets");
const AUTOSCALER: &str = page!("docs/how-to/autoscaler.md");
const KUEUE: &str = page!("docs/how-to/kueue.md");
const LIMITS: &str = page!("README.md#limits-honestly");

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// In the order of repair.
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub level: CheckLevel,
    pub check: &'static str,
    pub message: String,
    pub page: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckLevel {
    Ok,
    /// Degraded, or not checkable.
    Warn,
    /// Lockstep needs this repair to work.
    Fail,
}

impl Diagnosis {
    pub fn failed(&self) -> bool {
        self.checks.iter().any(|c| c.level == CheckLevel::Fail)
    }
}

type Finding = (CheckLevel, String);

fn ok(message: impl Into<String>) -> Finding {
    (CheckLevel::Ok, message.into())
}

fn warn(message: impl Into<String>) -> Finding {
    (CheckLevel::Warn, message.into())
}

fn fail(message: impl Into<String>) -> Finding {
    (CheckLevel::Fail, message.into())
}

fn unseen(what: &str) -> Finding {
    warn(format!("skipped: no permission to read {what}"))
}

fn check(check: &'static str, (level, message): Finding, page: &'static str) -> Check {
    Check {
        level,
        check,
        message,
        page,
    }
}

pub fn diagnose(facts: &InstallFacts, now: DateTime<Utc>) -> Diagnosis {
    let checks = vec![
        check("kubernetes", kubernetes(facts), LIMITS),
        check("definitions", definitions(facts), INSTALL),
        check("managers", managers(facts, now), INSTALL),
        check("lease", lease(facts, now), DOCTOR),
        check("versions", versions(facts), DOCTOR),
        check("policies", policies(facts), DOCTOR),
        check(
            "agents",
            agents(facts.agents.as_ref(), facts.nodes.as_deref()),
            AGENTS,
        ),
        check("nodes", nodes(facts), LIMITS),
        check("your rights", rights(facts), DOCTOR),
        check("native", native(facts), NATIVE),
        check("names", names(facts), DOCTOR),
        check("autoscaler", autoscaler::autoscaler(facts), AUTOSCALER),
        check("kueue", kueue::kueue(facts), KUEUE),
        check("objects", objects(facts), DOCTOR),
        check("budgets", budgets(facts), BUDGETS),
    ];
    Diagnosis { checks }
}

fn minor(version: &str) -> Option<u32> {
    let minor = version.trim_start_matches('v').split('.').nth(1)?;
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn kubernetes(facts: &InstallFacts) -> Finding {
    let version = &facts.kubernetes;
    match minor(version) {
        None => warn(format!(
            "cannot parse version {version:?}; its features are not checked"
        )),
        Some(minor) if minor < POLICIES_SINCE => fail(format!(
            "{version} has no admission policies to protect the fields that only the manager may write; upgrade to 1.{POLICIES_SINCE} or later"
        )),
        Some(minor) if minor < IN_PLACE_SINCE => {
            let nominations = if minor < NOMINATIONS_SINCE {
                format!(
                    "; kube-scheduler before 1.{NOMINATIONS_SINCE} drops nominations of other controllers, so pods of a preempting gang stay gated until the victims are gone"
                )
            } else {
                String::new()
            };
            warn(format!(
                "{version} cannot restart containers in place: pods of failed gangs without a supervisor are recreated; upgrade to 1.{IN_PLACE_SINCE} or later{nominations}"
            ))
        }
        Some(_) => ok(version.clone()),
    }
}

fn definitions(facts: &InstallFacts) -> Finding {
    let missing: Vec<&str> = RESOURCES
        .iter()
        .filter(|r| !facts.served.contains(**r))
        .copied()
        .collect();
    match missing.as_slice() {
        [] => ok(format!(
            "{} resources are served as v1alpha1",
            RESOURCES.len()
        )),
        missing if missing.len() == RESOURCES.len() => fail(
            "Lockstep is not installed: the API server serves none of its resources; run `kubectl apply -k config/overlays/default`",
        ),
        missing => fail(format!(
            "resources not served as v1alpha1: {}; run `kubectl apply -k config/overlays/default`",
            missing.join(", ")
        )),
    }
}

fn managers(facts: &InstallFacts, now: DateTime<Utc>) -> Finding {
    let Some(pods) = facts.managers.as_deref() else {
        return unseen("pods of the manager");
    };
    let namespaces: BTreeSet<&str> = pods.iter().map(|p| p.namespace.as_str()).collect();
    if namespaces.len() > 1 {
        let namespaces: Vec<&str> = namespaces.into_iter().collect();
        return fail(format!(
            "manager pods are in namespaces {}: two installations place gangs on the same nodes; uninstall one of them",
            some(&namespaces)
        ));
    }
    let ready = pods.iter().filter(|p| p.ready).count();
    let missing: Vec<&str> = pods
        .iter()
        .filter(|p| !p.ready)
        .map(|p| p.name.as_str())
        .collect();
    let cause = pods
        .iter()
        .find_map(|p| p.warning.as_deref())
        .map_or(String::new(), |w| format!("; last warning: {w}"));
    match (pods.len(), ready) {
        (0, _) => match facts.lease.iter().flatten().find(|l| !l.is_expired(now)) {
            Some(lease) => warn(format!(
                "no manager pod found, but {} renews the lease: the manager runs outside the cluster",
                lease.holder
            )),
            None => fail("no manager pod found: no workload is reconciled"),
        },
        (1, 0) => fail(format!(
            "the only manager pod is not ready: see `kubectl logs -n {} {}`{cause}",
            pods[0].namespace, pods[0].name
        )),
        (all, 0) => fail(format!(
            "0 of {all} manager pods are ready: see `kubectl logs -n {} {}`{cause}",
            pods[0].namespace, pods[0].name
        )),
        (1, _) => warn(
            "1 manager pod is ready; run two, so that workloads are still reconciled when one fails",
        ),
        (all, ready) if ready < all => warn(format!(
            "{ready} of {all} manager pods {} ready; not ready: {}{cause}",
            are(ready),
            some(&missing)
        )),
        (all, _) => ok(format!(
            "{all} manager pods are ready in namespace {}",
            pods[0].namespace
        )),
    }
}

fn lease(facts: &InstallFacts, now: DateTime<Utc>) -> Finding {
    match &facts.lease {
        None => unseen("the lease of the manager"),
        Some(None) => {
            fail("lease not found: no manager has become the leader; see the log of the manager")
        }
        Some(Some(lease)) => {
            let (holder, ago) = (&lease.holder, age(lease.renewed, now));
            if lease.is_expired(now) {
                fail(format!(
                    "{holder} has not renewed the lease for {ago} (limit {}s): no manager is the leader",
                    lease.duration_seconds
                ))
            } else {
                ok(format!("{holder} is the leader, lease renewed {ago} ago"))
            }
        }
    }
}

fn versions(facts: &InstallFacts) -> Finding {
    let skew = facts.versions.skew();
    if skew.is_empty() {
        ok(format!(
            "no component differs from version {}",
            facts.versions.client
        ))
    } else {
        warn(skew.join("; "))
    }
}

fn policies(facts: &InstallFacts) -> Finding {
    let Some(policies) = &facts.policies else {
        return unseen("admission policies");
    };
    let unenforced = |p: &&PolicyFacts| !p.denies;
    let missing: Vec<&str> = policies
        .iter()
        .filter(unenforced)
        .map(|p| p.name.as_str())
        .collect();
    if !missing.is_empty() {
        return fail(format!(
            "policies not in force: {}; users with write access can move pods of other users; run `kubectl apply -k config/policies`",
            missing.join(", ")
        ));
    }
    let refused = facts.accounts.iter().find(|a| a.writes == Some(false));
    if let Some(refused) = refused {
        return fail(format!(
            "the policies deny the writes of {}: grant the verb `write` on operatorobjects and members of admission.lockstep.dev, as the manager's ClusterRole in config/manager does",
            refused.account
        ));
    }
    ok(format!("{} policies are in force", policies.len()))
}

fn agents(report: Option<&AgentReport>, nodes: Option<&[NodeFacts]>) -> Finding {
    let Some(report) = report else {
        return unseen("node agents");
    };
    if report.agents.is_empty() {
        return warn(
            "no node agents: failed gangs restart with new pods; install agents with `kubectl apply -k config/overlays/full`",
        );
    }
    if report.nodes_in(AgentState::Unknown).next().is_some() {
        return unseen("pods of the agents");
    }
    let ready: Vec<&str> = report.nodes_in(AgentState::Ready).collect();
    let without: Vec<&str> = match nodes {
        Some(nodes) => nodes
            .iter()
            .map(|n| n.name.as_str())
            .filter(|n| !ready.contains(n))
            .collect(),
        None => [AgentState::NotReady, AgentState::Silent, AgentState::Gone]
            .into_iter()
            .flat_map(|state| report.nodes_in(state))
            .collect(),
    };
    if without.is_empty() {
        ok(format!(
            "{} {} ready",
            count(ready.len(), "agent"),
            are(ready.len())
        ))
    } else {
        warn(format!(
            "{} {} ready; no ready agent on {}: members on these nodes are recreated",
            count(ready.len(), "agent"),
            are(ready.len()),
            some(&without)
        ))
    }
}

fn nodes(facts: &InstallFacts) -> Finding {
    let Some(nodes) = &facts.nodes else {
        return unseen("nodes");
    };
    if nodes.is_empty() {
        return warn("the cluster has no nodes");
    }
    let able = nodes.iter().filter(|n| n.restarts_all).count();
    let declare = if able == 1 { "declares" } else { "declare" };
    if able == nodes.len() {
        let all = match able {
            1 => "the only node".to_owned(),
            able => format!("all {able} nodes"),
        };
        ok(format!("{all} {declare} {RESTART_ALL_FEATURE}"))
    } else {
        warn(format!(
            "{able} of {} nodes {declare} {RESTART_ALL_FEATURE}: pods without a supervisor on the other nodes restart one container at a time",
            nodes.len()
        ))
    }
}

fn rights(facts: &InstallFacts) -> Finding {
    let denied: Vec<&str> = facts
        .rights
        .iter()
        .filter(|r| !r.allowed)
        .map(|r| r.verbs)
        .collect();
    if facts.rights.is_empty() {
        warn("the API server did not return your permissions")
    } else if denied.is_empty() {
        ok(format!(
            "all commands are allowed in namespace {}",
            facts.namespace
        ))
    } else {
        warn(format!(
            "not allowed in namespace {}: {}; -n checks another namespace",
            facts.namespace,
            denied.join("; ")
        ))
    }
}

fn names(facts: &InstallFacts) -> Finding {
    let others: Vec<&str> = facts.other_groups.iter().map(String::as_str).collect();
    if others.is_empty() {
        ok("no other API group has a kind PodGroup or Workload")
    } else {
        let have = if others.len() == 1 { "has" } else { "have" };
        warn(format!(
            "{} {have} kinds of the same name: use `lpg` or podgroups.scheduling.lockstep.dev",
            some(&others)
        ))
    }
}

fn native(facts: &InstallFacts) -> Finding {
    let backend = facts.backend.as_deref();
    let both = backend == Some("Both");
    let kubernetes = backend == Some("Kubernetes");
    match facts.native.missing() {
        Some(why) if kubernetes => fail(format!(
            "scheduling.backend is Kubernetes, but gangs are not placed: {why}"
        )),
        None if kubernetes => ok(format!(
            "kube-scheduler places gangs by native groups ({NATIVE_GROUP}/{NATIVE_VERSION})"
        )),
        Some(why) if both => warn(format!(
            "scheduling.backend is Both, but gangs get no native groups: {why}"
        )),
        Some(why) => ok(why),
        None if both => ok(format!(
            "each gang gets a native group ({NATIVE_GROUP}/{NATIVE_VERSION})"
        )),
        None => ok(format!(
            "{NATIVE_GROUP}/{NATIVE_VERSION} is served and pods keep spec.schedulingGroup: scheduling.backend Both would create native groups"
        )),
    }
}

fn objects(facts: &InstallFacts) -> Finding {
    let read = || facts.objects.iter().filter_map(|o| o.read.as_ref());
    let unreadable: Vec<&String> = read().flat_map(|(_, unreadable)| unreadable).collect();
    if let Some(first) = unreadable.first() {
        let left = match unreadable.len() {
            1 => "is ignored",
            _ => "are ignored",
        };
        let objects = count(unreadable.len(), "object");
        return fail(format!("{objects} cannot be read and {left}: {first}"));
    }
    let hidden = facts.objects.iter().filter(|o| o.read.is_none());
    let kinds: Vec<&str> = hidden.map(|o| o.kind.as_str()).collect();
    if !kinds.is_empty() {
        return unseen(&kinds.join(", "));
    }
    let mut all = facts.objects.iter();
    let workloads = all.find(|o| o.kind == "trainingworkloads");
    let workloads = workloads.map_or(0, |o| o.read.as_ref().map_or(0, |r| r.0));
    ok(format!(
        "workloads ({workloads}) and all other objects can be read"
    ))
}

/// The controller of budgets takes the replicas of a workload for its pods, unless the budget has
/// `minAvailable` with a number.
fn budgets(facts: &InstallFacts) -> Finding {
    let Some(budgets) = &facts.budgets else {
        return unseen("disruption budgets or pods");
    };
    let wrong: Vec<String> = budgets.iter().filter_map(BudgetFacts::fault).collect();
    if wrong.is_empty() {
        return ok(match budgets.len() {
            0 => "no disruption budget selects members".to_owned(),
            n => format!("{} count all members", count(n, "disruption budget")),
        });
    }
    warn(format!(
        "{}; write minAvailable with a number of pods instead of maxUnavailable or a percentage",
        some(&wrong)
    ))
}

fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

fn some(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(NAMED).map(AsRef::as_ref);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
