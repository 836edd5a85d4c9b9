//! The shipped roles fit the calls of the scenarios: no right is missing, and no right is unused.
//! Cargo runs test programs by name, so this program is last.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow, ensure};
use lockstep_cluster::audit::{self, AuditLog, Call};
use lockstep_cluster::roles::{Grant, shipped, uncovered, unused};

/// Test program without which the calls are incomplete.
const NEEDED: &str = "scenarios";
/// User of the nodes, which writes in every scenario with nodes.
const NODES: &str = "hollow";

/// Calls of scenarios in the name of an account with rights beyond its role: tests of policies on
/// `NodeAgents`, and of the manager's rights as in a runbook. `whatif` validates by dry runs if its
/// user has the right, and otherwise warns.
const TRIED: [(&str, &str, &str); 6] = [
    (audit::WHATIF, "patch", "trainingworkloads"),
    (audit::WHATIF, "create", "pods"),
    (audit::AGENT, "delete", "nodeagents"),
    (audit::AGENT, "deletecollection", "nodeagents"),
    (audit::AGENT, "patch", "nodeagents/status"),
    (audit::MANAGER, "create", "selfsubjectaccessreviews"),
];

/// Group of `kubectl top`, whose server is absent from the clusters of these tests.
const METRICS: &str = "metrics.k8s.io";

/// A kind that API servers serve only with alpha gates, which no scenario sets. The tests of the
/// scheduler cover it.
const ALPHA: &str = "compositepodgroups";

/// Calls of all users. `None` without nodes. The logs have hundreds of megabytes, so they are read
/// once.
static CALLS: LazyLock<Result<Option<BTreeSet<Call>>, String>> =
    LazyLock::new(|| all_calls().map_err(|error| format!("{error:#}")));

fn all_calls() -> Result<Option<BTreeSet<Call>>> {
    let (mut all, mut of_nodes) = (BTreeSet::new(), false);
    for ((program, _), log) in AuditLog::all()? {
        let calls = log.calls()?;
        of_nodes |= program == NEEDED && calls.iter().any(|c| c.user == NODES);
        all.extend(calls);
    }
    Ok(of_nodes.then_some(all))
}

fn calls_of(user: &str) -> Result<Option<BTreeSet<Call>>> {
    let Some(all) = CALLS.as_ref().map_err(|error| anyhow!("{error}"))? else {
        println!("skipped: no audit log of `{NEEDED}` with nodes; run the whole of `make e2e`");
        return Ok(None);
    };
    let mut calls = all.clone();
    calls.retain(|c| c.user == user);
    calls.retain(|c| !TRIED.contains(&(user, c.verb.as_str(), c.resource.as_str())));
    Ok(Some(calls))
}

fn check(user: &str, folders: &[&str], roles: &[&str]) -> Result<()> {
    let Some(calls) = calls_of(user)? else {
        return Ok(());
    };
    let mut granted = BTreeSet::new();
    for folder in folders {
        granted.extend(shipped(folder, roles).context("roles")?);
    }
    // Checked by admission policies and never called. Without these rights, all writes are refused.
    granted.retain(|g| g.group != "admission.lockstep.dev" && g.resource != ALPHA);
    ensure!(!granted.is_empty(), "no rule found in {folders:?}");
    let missing = uncovered(&granted, &calls);
    // The role for on-call reads: each kind is read in some way.
    let is_read = |g: &Grant| {
        calls
            .iter()
            .any(|c| c.group == g.group && c.resource == g.resource)
    };
    let mut idle = unused(&granted, &calls);
    idle.retain(|g| user != audit::ON_CALL || !(g.group == METRICS || is_read(g)));
    ensure!(
        missing.is_empty(),
        "calls that no role covers: {missing:#?}"
    );
    ensure!(idle.is_empty(), "rules that no call used: {idle:#?}");
    Ok(())
}

#[test]
fn the_roles_of_the_manager_fit_its_calls() -> Result<()> {
    check(
        audit::MANAGER,
        &["manager", "components/provisioning-requests"],
        &[
            "lockstep-manager",
            "lockstep-leader-election",
            "lockstep-provisioning-requests",
        ],
    )
}

#[test]
fn the_roles_of_people_fit_the_calls_of_kubectl_lockstep() -> Result<()> {
    check(audit::WHATIF, &["rbac"], &["lockstep-whatif"])?;
    check(audit::ON_CALL, &["rbac"], &["lockstep-oncall"])
}

#[test]
fn the_role_of_the_agents_fits_their_calls() -> Result<()> {
    check(audit::AGENT, &["components/agent"], &["lockstep-agent"])
}
