use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::Api;
use lockstep_api::provisioning::AUTOSCALING_GROUP;
use lockstep_api::scheduling::AutoscalerMode;

use super::ClusterReader;
use super::doctor::{absent, versions};
use super::workloads::permitted;
use crate::doctor_facts::AutoscalerFacts;
use crate::problem::Problem;
use crate::published::AutoscalerPart;

const REQUESTS: &str = "provisioningrequests";
/// Rights of the manager for ProvisioningRequests: verb, group, resource, subresource.
const OF_REQUESTS: [[&str; 4]; 4] = [
    ["watch", AUTOSCALING_GROUP, REQUESTS, ""],
    ["create", AUTOSCALING_GROUP, REQUESTS, ""],
    ["delete", AUTOSCALING_GROUP, REQUESTS, ""],
    ["create", "", "podtemplates", ""],
];
/// Rights of the manager for signal pods.
const OF_PODS: [[&str; 4]; 3] = [
    ["create", "", "pods", ""],
    ["delete", "", "pods", ""],
    ["patch", "", "pods", "status"],
];

impl ClusterReader {
    /// What the configured mode needs, for the manager with this account.
    pub(super) async fn autoscaler(
        &self,
        configured: &AutoscalerPart,
        groups: &APIGroupList,
        account: Option<&str>,
    ) -> Result<AutoscalerFacts, Problem> {
        let mut serves_requests = false;
        for version in versions(groups, AUTOSCALING_GROUP) {
            let version = format!("{AUTOSCALING_GROUP}/{version}");
            let request = self.client.list_api_group_resources(&version);
            let list = absent(self.send(request, AUTOSCALING_GROUP).await)?;
            let mut resources = list.iter().flat_map(|l| &l.resources);
            serves_requests |= resources.any(|r| r.name == REQUESTS);
        }
        let rights = match configured.mode {
            AutoscalerMode::Off => &[][..],
            AutoscalerMode::ProvisioningRequest => &OF_REQUESTS[..],
            AutoscalerMode::Pods => &OF_PODS[..],
        };
        let namespace = configured.namespace.clone();
        let namespace_exists = if configured.mode == AutoscalerMode::Pods {
            let api: Api<Namespace> = Api::all(self.client.clone());
            let found = self.send(api.get_opt(&namespace), "namespaces").await;
            permitted(found)?.map(|found| found.is_some())
        } else {
            None
        };
        Ok(AutoscalerFacts {
            mode: configured.mode,
            namespace,
            namespace_exists,
            serves_requests,
            karpenter: !versions(groups, "karpenter.sh").is_empty(),
            lacks: self.lacking(account, rights).await?,
        })
    }
}
