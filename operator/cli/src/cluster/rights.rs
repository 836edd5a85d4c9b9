use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::ClusterReader;
use super::install::ManagerDeployment;
use super::workloads::permitted;
use crate::doctor_facts::{AccountFacts, RightFacts};
use crate::problem::Problem;

/// Rights that the policies require of the manager, as resources of a virtual API group.
const MANAGER_WRITES: (&str, [&str; 2]) =
    ("admission.lockstep.dev", ["operatorobjects", "members"]);

/// Commands of this program, each with its right: verb, group, resource, subresource.
const RIGHTS: [(&str, [&str; 4]); 5] = [
    (
        "status, explain (list trainingworkloads)",
        ["list", "training.lockstep.dev", "trainingworkloads", ""],
    ),
    (
        "restart, suspend, resume, checkpoint (patch trainingworkloads)",
        ["patch", "training.lockstep.dev", "trainingworkloads", ""],
    ),
    ("logs (get pods/log)", ["get", "", "pods", "log"]),
    (
        "queue, whatif, snapshot (list nodes)",
        ["list", "", "nodes", ""],
    ),
    (
        "agents (list nodeagents)",
        ["list", "training.lockstep.dev", "nodeagents", ""],
    ),
];

impl ClusterReader {
    pub(super) async fn accounts(
        &self,
        deployments: &[ManagerDeployment],
    ) -> Result<Vec<AccountFacts>, Problem> {
        let mut facts = Vec::new();
        for deployment in deployments {
            let account = deployment.account.clone();
            let mut writes = Some(true);
            for resource in MANAGER_WRITES.1 {
                let right = ["write", MANAGER_WRITES.0, resource, ""];
                let may = self.may(&account, right).await?;
                writes = writes.and_then(|w| Some(w && may?));
            }
            facts.push(AccountFacts { account, writes });
        }
        Ok(facts)
    }

    /// Rights that the account lacks, such as `list nodes`. `None` if the user may not check it.
    pub(super) async fn lacking(
        &self,
        account: Option<&str>,
        rights: &[[&str; 4]],
    ) -> Result<Option<Vec<String>>, Problem> {
        let mut lacking = Vec::new();
        for right in rights {
            let Some(account) = account else {
                return Ok(None);
            };
            match self.may(account, *right).await? {
                None => return Ok(None),
                Some(true) => {}
                Some(false) => lacking.push(named(*right)),
            }
        }
        Ok(Some(lacking))
    }

    /// True if the account has a right in all namespaces; `None` if the user may not check it.
    async fn may(&self, account: &str, right: [&str; 4]) -> Result<Option<bool>, Problem> {
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(account.to_owned()),
                resource_attributes: Some(attributes(right)),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let params = PostParams::default();
        let request = api.create(&params, &review);
        let response = permitted(self.send(request, "subjectaccessreviews").await)?;
        Ok(response.map(|a| a.status.is_some_and(|s| s.allowed)))
    }

    /// What the user may do with this program in a namespace.
    pub(super) async fn rights(&self, namespace: &str) -> Result<Vec<RightFacts>, Problem> {
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let mut rights = Vec::new();
        for (verbs, right) in RIGHTS {
            let namespace = Some(namespace.to_owned());
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        namespace: namespace.filter(|n| !n.is_empty() && right[2] != "nodes"),
                        ..attributes(right)
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let params = PostParams::default();
            let request = api.create(&params, &review);
            let response = self.send(request, "selfsubjectaccessreviews").await;
            if let Some(response) = permitted(response)? {
                let allowed = response.status.is_some_and(|s| s.allowed);
                rights.push(RightFacts { verbs, allowed });
            }
        }
        Ok(rights)
    }
}

/// A right in all namespaces: verb, group, resource and subresource.
fn attributes(right: [&str; 4]) -> ResourceAttributes {
    let [verb, group, resource, subresource] =
        right.map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()));
    ResourceAttributes {
        verb,
        group,
        resource,
        subresource,
        ..ResourceAttributes::default()
    }
}

fn named([verb, group, resource, subresource]: [&str; 4]) -> String {
    let subresource = Some(subresource).filter(|s| !s.is_empty());
    let subresource = subresource.map_or(String::new(), |s| format!("/{s}"));
    let right = format!("{verb} {resource}{subresource}.{group}");
    right.trim_end_matches('.').to_owned()
}
