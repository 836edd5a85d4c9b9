use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::pods::pod::Pod;

/// A pod disruption budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    pub namespace: String,
    pub name: String,
    /// Guarded pods: none without a selector, all with an empty one (policy/v1).
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub allowed: i32,
}

impl Budget {
    pub fn guards(&self, pod: &Pod) -> bool {
        self.guards_labels(&pod.namespace, &pod.labels)
    }

    /// True if it guards a pod of this namespace with these labels.
    pub fn guards_labels(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let selector = self.selector.as_ref();
        namespace == self.namespace && selector.is_some_and(|s| selects(s, labels))
    }
}

/// Budgets by namespace.
#[derive(Debug)]
pub(crate) struct Budgets<'a>(BTreeMap<&'a str, Vec<&'a Budget>>);

impl<'a> Budgets<'a> {
    pub fn new(all: &'a [Arc<Budget>]) -> Self {
        let mut by_namespace: BTreeMap<&str, Vec<&Budget>> = BTreeMap::new();
        for budget in all {
            let namespace = by_namespace.entry(&budget.namespace);
            namespace.or_default().push(budget);
        }
        Self(by_namespace)
    }

    /// True if these pods may not be evicted together now. The API server evicts no pod with two
    /// budgets.
    pub fn forbid<'p>(&self, pods: impl IntoIterator<Item = &'p Pod>) -> bool {
        let mut evicted: BTreeMap<&str, i32> = BTreeMap::new();
        pods.into_iter().any(|pod| {
            let all = self.0.get(&*pod.namespace);
            let mut guards = all.into_iter().flatten().filter(|b| b.guards(pod));
            let (Some(budget), second) = (guards.next(), guards.next()) else {
                return false;
            };
            let evicted = evicted.entry(&budget.name).or_default();
            *evicted += 1;
            second.is_some() || *evicted > budget.allowed
        })
    }
}

pub(crate) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(k, v)| labels.get(k) == Some(v)) && expressions.all(|r| satisfies(labels, r))
}

fn satisfies(labels: &BTreeMap<String, String>, requirement: &LabelSelectorRequirement) -> bool {
    let value = labels.get(&requirement.key);
    let listed = value.is_some_and(|v| requirement.values.iter().flatten().any(|w| w == v));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_budget_guards_what_its_selector_matches_in_its_namespace() {
        let pod = Pod {
            labels: std::sync::Arc::new([("app".to_owned(), "web".to_owned())].into()),
            ..Pod::bare("ml", "p", "u".parse().unwrap())
        };
        let guards = |namespace: &str, selector: Option<Value>| {
            let selector = selector.map(|s| serde_json::from_value(s).unwrap());
            Budget {
                namespace: namespace.into(),
                selector,
                ..Budget::default()
            }
            .guards(&pod)
        };
        assert!(guards("ml", Some(json!({"matchLabels": {"app": "web"}}))));
        assert!(!guards(
            "other",
            Some(json!({"matchLabels": {"app": "web"}}))
        ));
        assert!(!guards("ml", Some(json!({"matchLabels": {"app": "db"}}))));
        assert!(guards("ml", Some(json!({}))));
        assert!(!guards("ml", None));
        let expression = |operator: &str, values: &[&str]| {
            Some(
                json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}),
            )
        };
        assert!(
            guards("ml", expression("In", &["web"]))
                && !guards("ml", expression("NotIn", &["web"]))
        );
        assert!(
            guards("ml", expression("Exists", &[]))
                && !guards("ml", expression("DoesNotExist", &[]))
        );
    }

    #[test]
    fn budgets_forbid_evictions_beyond_their_number_and_of_pods_with_two_budgets() {
        let pod = |app: &str| Pod {
            labels: Arc::new([("app".to_owned(), app.to_owned())].into()),
            ..Pod::bare("ml", "p", "u".parse().unwrap())
        };
        let budget = |name: &str, app: &str, allowed: i32| {
            let selector = json!({"matchLabels": {"app": app}});
            Arc::new(Budget {
                namespace: "ml".into(),
                name: name.into(),
                selector: serde_json::from_value(selector).unwrap(),
                allowed,
            })
        };
        let (web, db) = (pod("web"), pod("db"));
        let all = [
            budget("web", "web", 1),
            budget("a", "db", 1),
            budget("b", "db", 1),
        ];
        let budgets = Budgets::new(&all);
        assert!(!budgets.forbid([&web]));
        assert!(budgets.forbid([&web, &web]));
        assert!(budgets.forbid([&db]));
        assert!(!budgets.forbid([&pod("other")]));
    }
}
