//! Checks of the installation. Each check gives one line with the page to read.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_api::words::count;
use serde::Serialize;

use crate::agents::{AgentReport, AgentState};
use crate::doctor_facts::{
    InstallFacts, KueueFacts, LeaseFacts, ManagerPod, NodeFacts, PolicyFacts, RESOURCES,
};
use crate::view::age::age;
use crate::view::table::{Cell, Table, Tone};
use crate::view::{Look, View};

/// First minor version of Kubernetes with admission policies.
const POLICIES_SINCE: u32 = 30;
/// First minor version whose kube-scheduler keeps nominations by other components (KEP-5278).
const NOMINATIONS_SINCE: u32 = 34;
/// First minor version whose kubelets restart containers in place.
const IN_PLACE_SINCE: u32 = 35;
/// Most names in one line.
const NAMED: usize = 3;

const INSTALL: &str = "README.md#install";
const DOCTOR: &str = "docs/cli.md#doctor";
const AGENTS: &str = "docs/architecture.md";
const NATIVE: &str = "docs/scheduling.md#native-scheduling-objects";
const LIMITS: &str = "README.md#limits-honestly";

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
    /// Subject of the check.
    pub check: &'static str,
    /// Finding and remedy.
    pub message: String,
    /// Page to read.
    pub page: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckLevel {
    Ok,
    /// Degraded, or not checkable.
    Warn,
    /// Lockstep does not work until this is repaired.
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
    warn(format!("{what} may not be read by you: not looked at"))
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
        check("managers", managers(facts.managers.as_deref()), INSTALL),
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
        check("kueue", kueue(facts), DOCTOR),
        check("objects", objects(facts), DOCTOR),
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
        None => warn(format!("{version:?} is no version that can be judged")),
        Some(minor) if minor < POLICIES_SINCE => fail(format!(
            "{version} has no admission policies: nothing keeps others from writing what only the manager may; 1.{POLICIES_SINCE} is needed"
        )),
        Some(minor) if minor < IN_PLACE_SINCE => {
            let nominations = if minor < NOMINATIONS_SINCE {
                format!(
                    "; its kube-scheduler drops nominations that others make: pods of a gang that preempts stay gated until its victims are gone; 1.{NOMINATIONS_SINCE} keeps them"
                )
            } else {
                String::new()
            };
            warn(format!(
                "{version} cannot restart containers in place: failed gangs without a supervisor are recreated; 1.{IN_PLACE_SINCE} can{nominations}"
            ))
        }
        Some(_) => ok(version.clone()),
    }
}

fn definitions(facts: &InstallFacts) -> Finding {
    let missing = RESOURCES.iter().filter(|r| !facts.served.contains(**r));
    let missing: Vec<&str> = missing.copied().collect();
    match missing.as_slice() {
        [] => ok(format!("{} are served as v1alpha1", RESOURCES.len())),
        missing if missing.len() == RESOURCES.len() => fail(
            "none is served: Lockstep is not installed; `kubectl apply -k config/overlays/default`",
        ),
        missing => fail(format!(
            "not served as v1alpha1: {}; `kubectl apply -k config/overlays/default`",
            missing.join(", ")
        )),
    }
}

fn managers(pods: Option<&[ManagerPod]>) -> Finding {
    let Some(pods) = pods else {
        return unseen("pods of the manager");
    };
    let ready = pods.iter().filter(|p| p.ready).count();
    let missing: Vec<&str> = pods
        .iter()
        .filter(|p| !p.ready)
        .map(|p| p.name.as_str())
        .collect();
    let cause = pods.iter().find_map(|p| p.warning.as_deref());
    let cause = cause.map_or(String::new(), |w| format!("; its last warning: {w}"));
    match (pods.len(), ready) {
        (0, _) => fail("no pod has the manager's labels: no manager acts on workloads"),
        (1, 0) => fail(format!(
            "the only one is not ready: `kubectl logs -n {} {}`{cause}",
            pods[0].namespace, pods[0].name
        )),
        (all, 0) => fail(format!(
            "none of {all} is ready: `kubectl logs -n {} {}`{cause}",
            pods[0].namespace, pods[0].name
        )),
        (1, _) => warn("1 is ready: while it is away no manager acts on workloads; run two"),
        (all, ready) if ready < all => warn(format!(
            "{ready} of {all} {} ready; not {}{cause}",
            are(ready),
            some(&missing)
        )),
        (all, _) => ok(format!(
            "{all} are ready in namespace {}",
            pods[0].namespace
        )),
    }
}

fn lease(facts: &InstallFacts, now: DateTime<Utc>) -> Finding {
    match &facts.lease {
        None => unseen("the lease of the manager"),
        Some(None) => fail("there is no lease: no manager has ever led; look at its log"),
        Some(Some(LeaseFacts {
            holder,
            renewed,
            duration_seconds,
        })) => {
            let ago = age(*renewed, now);
            let expired = renewed.is_none_or(|at| at + TimeDelta::seconds(*duration_seconds) < now);
            if expired {
                fail(format!(
                    "{holder} has not renewed it for {ago} ({duration_seconds}s allowed): no manager leads"
                ))
            } else {
                ok(format!("{holder} leads, renewed {ago} ago"))
            }
        }
    }
}

fn versions(facts: &InstallFacts) -> Finding {
    let skew = facts.versions.skew();
    if skew.is_empty() {
        ok(format!("nothing differs from {}", facts.versions.client))
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
            "not in force: {}; anybody with a role for it may move pods of others: `kubectl apply -k config/policies`",
            missing.join(", ")
        ));
    }
    let refused = facts.accounts.iter().find(|a| a.writes == Some(false));
    if let Some(refused) = refused {
        return fail(format!(
            "they refuse {} its writes: it lacks the rights `write` on operatorobjects and members of admission.lockstep.dev, which the manager's ClusterRole in config/manager has",
            refused.account
        ));
    }
    ok(format!("{} are in force", policies.len()))
}

fn agents(report: Option<&AgentReport>, nodes: Option<&[NodeFacts]>) -> Finding {
    let Some(report) = report else {
        return unseen("node agents");
    };
    if report.agents.is_empty() {
        return warn(
            "none: gangs restart with new pods; `kubectl apply -k config/overlays/full` installs them",
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
        ok(format!("{} {} ready", ready.len(), are(ready.len())))
    } else {
        warn(format!(
            "{} {} ready; none is on {}: members there are recreated",
            ready.len(),
            are(ready.len()),
            some(&without)
        ))
    }
}

fn nodes(facts: &InstallFacts) -> Finding {
    let Some(nodes) = &facts.nodes else {
        return unseen("nodes");
    };
    let able = nodes.iter().filter(|n| n.restarts_all).count();
    let declare = if able == 1 { "declares" } else { "declare" };
    if able == nodes.len() {
        let all = match able {
            1 => "the only one".to_owned(),
            able => format!("all {able}"),
        };
        ok(format!("{all} {declare} {RESTART_ALL_FEATURE}"))
    } else {
        warn(format!(
            "{able} of {} {declare} {RESTART_ALL_FEATURE}: without a supervisor pods on the others restart one container at a time",
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
        warn("the API server does not say what you may do")
    } else if denied.is_empty() {
        ok("every verb of this program")
    } else {
        warn(format!("not for you: {}", denied.join("; ")))
    }
}

fn names(facts: &InstallFacts) -> Finding {
    let others: Vec<&str> = facts.other_groups.iter().map(String::as_str).collect();
    if others.is_empty() {
        ok("no other kind is called PodGroup or Workload")
    } else {
        let have = if others.len() == 1 { "has" } else { "have" };
        warn(format!(
            "{} {have} kinds of the same name: say `lpg` or podgroups.scheduling.lockstep.dev",
            some(&others)
        ))
    }
}

fn native(facts: &InstallFacts) -> Finding {
    match facts.native.as_slice() {
        [] => ok("scheduling.k8s.io serves no pod groups"),
        versions => ok(format!(
            "scheduling.k8s.io serves pod groups ({}): gangs are placed without them, those of others are read",
            versions.join(", ")
        )),
    }
}

fn kueue(facts: &InstallFacts) -> Finding {
    match facts.kueue {
        KueueFacts::Absent => ok("not installed"),
        KueueFacts::Unseen => unseen("Kueue's configuration"),
        KueueFacts::LeavesThem => ok("leaves jobs without a queue alone"),
        KueueFacts::TakesAll => warn(
            "manageJobsWithoutQueueName is on: it gates the pods of placed gangs, which then wait for ever; exclude them",
        ),
    }
}

fn objects(facts: &InstallFacts) -> Finding {
    let read = || facts.objects.iter().filter_map(|o| o.read.as_ref());
    let unreadable: Vec<&String> = read().flat_map(|(_, unreadable)| unreadable).collect();
    if let Some(first) = unreadable.first() {
        let left = match unreadable.len() {
            1 => "is left alone",
            _ => "are left alone",
        };
        let objects = count(unreadable.len(), "object");
        return fail(format!("{objects} cannot be read and {left}: {first}"));
    }
    let hidden = facts.objects.iter().filter(|o| o.read.is_none());
    let hidden: Vec<&str> = hidden.map(|o| o.kind.as_str()).collect();
    if !hidden.is_empty() {
        return unseen(&hidden.join(", "));
    }
    let workloads = facts.objects.iter().find(|o| o.kind == "trainingworkloads");
    let workloads = workloads.and_then(|o| o.read.as_ref()).map_or(0, |r| r.0);
    ok(format!(
        "workloads ({workloads}) and all other objects can be read"
    ))
}

/// The verb for this number.
fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

fn some(names: &[&str]) -> String {
    let shown = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl View for Diagnosis {
    fn screen(&self, look: &Look) -> String {
        let mut table = Table::new(&["RESULT", "CHECK", "FOUND", "READ"]);
        for check in &self.checks {
            let (word, tone) = match check.level {
                CheckLevel::Ok => ("ok", Tone::Good),
                CheckLevel::Warn => ("warn", Tone::Busy),
                CheckLevel::Fail => ("FAIL", Tone::Bad),
            };
            let page = match check.level {
                CheckLevel::Ok => "",
                _ => check.page,
            };
            table.row([
                Cell::new(word, tone),
                check.check.into(),
                check.message.clone().into(),
                page.into(),
            ]);
        }
        table.render(look)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
