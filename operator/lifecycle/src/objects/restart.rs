//! Compiles the failure policy to restart policies and restart rules (KEP-5307, KEP-5532).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, PodSpec,
};
use lockstep_api::workload::{FailureAction, FailurePolicy, FailureRule};

use lockstep_api::tier::Tier;

const MAX_RULES: usize = 20;
/// SIGKILL. The agent stops containers with it, so it always restarts them.
const KILLED: i32 = 137;

/// Effects of exit codes, where the code alone determines them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Codes {
    /// The pod is replaced, the workload fails, or the failure is ignored.
    pub stay_down: BTreeSet<i32>,
    pub restart_alone: BTreeSet<i32>,
}

impl Codes {
    /// Evaluates the rules for the codes 1 to 255. Skips rules with reasons or conditions, which
    /// the manager evaluates. `keeps_pods`: a restart of the domain keeps its pods. `single`: the
    /// pod has no other container, so a restart of the container restarts the pod. The kubelet
    /// delays repeated restarts of a container, but not of all containers.
    pub(super) fn of(
        policy: &FailurePolicy,
        group: &str,
        container: &str,
        default: FailureAction,
        keeps_pods: bool,
        single: bool,
    ) -> Self {
        let mut codes = Self::default();
        for code in (1..=255).filter(|c| *c != KILLED) {
            let mut rules = policy.rules.iter();
            let rule = rules.find(|r| matches_code(r, group, container, code));
            let action = rule.map_or(default, |r| r.action);
            let action = if keeps_pods {
                action
            } else {
                action.with_new_pods()
            };
            match action {
                FailureAction::RecreateGang
                | FailureAction::FailWorkload
                | FailureAction::Ignore => {
                    codes.stay_down.insert(code);
                }
                FailureAction::RestartContainer => {
                    codes.restart_alone.insert(code);
                }
                FailureAction::RestartPod if single => {
                    codes.restart_alone.insert(code);
                }
                FailureAction::RestartPod | FailureAction::RestartGang => {}
            }
        }
        codes
    }
}

/// True if a rule on the exit code alone ignores it, so that no rule of the pod restarts the
/// container.
pub(crate) fn ignores_code(
    policy: &FailurePolicy,
    group: &str,
    container: &str,
    code: i32,
) -> bool {
    let mut rules = policy.rules.iter();
    let rule = rules.find(|r| matches_code(r, group, container, code));
    code != KILLED && rule.is_some_and(|r| r.action == FailureAction::Ignore)
}

fn matches_code(rule: &FailureRule, group: &str, container: &str, code: i32) -> bool {
    let m = &rule.matches;
    m.reasons.is_empty()
        && m.pod_conditions.is_empty()
        && m.names_group(group)
        && m.names_container(container)
        && m.exit_codes
            .as_ref()
            .is_none_or(|codes| codes.contains(code))
}

/// Sets the restart policies of a pod for a tier.
///
/// The pod's policy becomes Never, so that a training container without a restart fails the pod.
/// The user's policy (default OnFailure) moves to the other containers.
pub(super) fn compile(pod: &mut PodSpec, training: &str, codes: &Codes, tier: Tier) {
    let users = pod
        .restart_policy
        .take()
        .unwrap_or_else(|| "OnFailure".into());
    let Some(restart) = tier.restart_action() else {
        pod.restart_policy = Some("OnFailure".into());
        return;
    };
    pod.restart_policy = Some("Never".into());
    if users != "Never" {
        let others = pod.containers.iter_mut().filter(|c| c.name != training);
        let inits = pod.init_containers.iter_mut().flatten();
        for c in others.chain(inits).filter(|c| c.restart_policy.is_none()) {
            c.restart_policy = Some(users.clone());
        }
    }
    if let Some(c) = pod.containers.iter_mut().find(|c| c.name == training) {
        compile_container(c, codes, tier, restart);
    }
}

/// `restart`: action of the tier's rules.
fn compile_container(container: &mut Container, codes: &Codes, tier: Tier, restart: &str) {
    let alone = (tier.restarts_whole_pod() && !codes.restart_alone.is_empty())
        .then(|| rule("Restart", "In", codes.restart_alone.iter().copied()));
    let rest = rule(
        restart,
        "NotIn",
        std::iter::once(0).chain(codes.stay_down.iter().copied()),
    );
    let rules = container.restart_policy_rules.get_or_insert_with(Vec::new);
    let ours = alone.into_iter().chain([rest]);
    container.restart_policy = Some("Never".into());
    if rules.len() + ours.clone().count() <= MAX_RULES {
        rules.extend(ours);
    } else {
        // The user's rules fill the list. OnFailure covers all other exits.
        container.restart_policy = Some("OnFailure".into());
    }
}

fn rule(action: &str, operator: &str, values: impl Iterator<Item = i32>) -> ContainerRestartRule {
    ContainerRestartRule {
        action: action.into(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: operator.into(),
            values: Some(values.collect()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::workload::FailureAction::RestartGang;
    use serde_json::{Value, json};

    fn policy(rules: &Value) -> FailurePolicy {
        serde_json::from_value(json!({"rules": rules})).unwrap()
    }

    fn compiled(rules: &Value, pod: Value, tier: Tier) -> PodSpec {
        let mut pod: PodSpec = serde_json::from_value(pod).unwrap();
        let codes = Codes::of(&policy(rules), "workers", "c", RestartGang, true, false);
        compile(&mut pod, "c", &codes, tier);
        pod
    }

    fn rules_of(pod: &PodSpec) -> Vec<(String, String, Vec<i32>)> {
        let rules = pod.containers[0]
            .restart_policy_rules
            .clone()
            .unwrap_or_default();
        rules
            .into_iter()
            .map(|r| {
                let codes = r.exit_codes.unwrap();
                (r.action, codes.operator, codes.values.unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn every_code_restarts_but_success_and_those_that_replace_or_fail() {
        let rules = json!([
            {"name": "bad", "match": {"exitCodes": {"operator": "In", "values": [3, 137]}}, "action": "FailWorkload"},
            {"name": "disk", "match": {"exitCodes": {"operator": "In", "values": [3, 4]}}, "action": "RecreateGang"},
            {"name": "other", "match": {"groups": ["elsewhere"], "exitCodes": {"operator": "In", "values": [5]}}, "action": "Ignore"}]);
        let pod = compiled(
            &rules,
            json!({"containers": [{"name": "c"}]}),
            Tier::RestartAll,
        );
        assert_eq!(
            rules_of(&pod),
            [("RestartAllContainers".into(), "NotIn".into(), vec![0, 3, 4])]
        );
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.containers[0].restart_policy.as_deref(), Some("Never"));
    }

    #[test]
    fn where_a_restart_of_the_gang_replaces_its_pods_the_container_stays_down() {
        let rules = json!([
            {"name": "soft", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "RestartPod"},
            {"name": "gang", "action": "RestartGang"}]);
        let codes = Codes::of(&policy(&rules), "workers", "c", RestartGang, false, false);
        assert!(codes.stay_down.contains(&1) && !codes.stay_down.contains(&9));
        assert!(!codes.stay_down.contains(&KILLED));
    }

    #[test]
    fn codes_that_restart_one_container_come_before_those_that_restart_the_pod() {
        let rules = json!([{"name": "soft", "match": {"exitCodes": {"operator": "In", "values": [9]}}, "action": "RestartContainer"}]);
        let pod = compiled(
            &rules,
            json!({"containers": [{"name": "c"}]}),
            Tier::RestartAll,
        );
        assert_eq!(
            rules_of(&pod),
            [
                ("Restart".into(), "In".into(), vec![9]),
                ("RestartAllContainers".into(), "NotIn".into(), vec![0])
            ]
        );
        let pod = compiled(
            &rules,
            json!({"containers": [{"name": "c"}]}),
            Tier::RestartRules,
        );
        assert_eq!(
            rules_of(&pod),
            [("Restart".into(), "NotIn".into(), vec![0])]
        );
    }

    #[test]
    fn rules_on_reasons_are_left_to_the_manager() {
        let rules =
            json!([{"name": "oom", "match": {"reasons": ["OOMKilled"]}, "action": "FailWorkload"}]);
        let pod = compiled(
            &rules,
            json!({"containers": [{"name": "c"}]}),
            Tier::RestartAll,
        );
        assert_eq!(
            rules_of(&pod),
            [("RestartAllContainers".into(), "NotIn".into(), vec![0])]
        );
    }

    #[test]
    fn the_list_of_values_never_exceeds_the_limit_of_the_kep() {
        let rules = json!([{"name": "all", "match": {}, "action": "FailWorkload"}]);
        let pod = compiled(
            &rules,
            json!({"containers": [{"name": "c"}]}),
            Tier::RestartRules,
        );
        let values = &rules_of(&pod)[0].2;
        assert_eq!((values.len(), values.contains(&137)), (255, false));
    }

    #[test]
    fn the_users_rules_stay_in_front_and_the_limit_of_twenty_holds() {
        let users = |n: usize| {
            let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [7]}});
            json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": vec![rule; n]}]})
        };
        let pod = compiled(&json!([]), users(19), Tier::RestartRules);
        assert_eq!(
            (
                rules_of(&pod).len(),
                rules_of(&pod)[18].2.clone(),
                rules_of(&pod)[19].2.clone()
            ),
            (20, vec![7], vec![0])
        );
        let pod = compiled(&json!([]), users(20), Tier::RestartRules);
        assert_eq!(
            (
                rules_of(&pod).len(),
                pod.containers[0].restart_policy.as_deref()
            ),
            (20, Some("OnFailure"))
        );
    }

    #[test]
    fn the_users_restart_policy_goes_to_the_other_containers() {
        let pod = json!({"restartPolicy": "OnFailure", "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}, {"name": "log"}]});
        let pod = compiled(&json!([]), pod, Tier::RestartAll);
        let policies: Vec<_> = pod
            .init_containers
            .iter()
            .flatten()
            .chain(&pod.containers)
            .map(|c| (c.name.as_str(), c.restart_policy.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(
            policies,
            [
                ("i", "OnFailure"),
                ("s", "Always"),
                ("c", "Never"),
                ("log", "OnFailure")
            ]
        );
    }

    #[test]
    fn the_plain_tier_sets_no_rules() {
        let pod = compiled(
            &json!([]),
            json!({"restartPolicy": "Never", "containers": [{"name": "c"}]}),
            Tier::Plain,
        );
        assert_eq!(
            (pod.restart_policy.as_deref(), rules_of(&pod)),
            (Some("OnFailure"), vec![])
        );
        assert_eq!(pod.containers[0].restart_policy, None);
    }
}
