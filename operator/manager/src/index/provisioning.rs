//! Node demand of gangs, and the objects that show it to a node autoscaler.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::ApiResource;
use lockstep_api::PodGroup;
use lockstep_api::ids::Uid;
use lockstep_api::member::Member;
use lockstep_api::names::{labels, provisioning_request_name};
use lockstep_api::provisioning::ProvisioningRequest;
use lockstep_api::scheduling::{AutoscalerMode, NodeDemand, ProvisioningPhase};
use lockstep_lifecycle::gangs::ProvisionedRequest;
use lockstep_lifecycle::provisioning::{
    AdmittedTemplate, DemandingGang, ProvisioningView, SignalPod, SignalStage,
};
use lockstep_lifecycle::view::WorkloadId;
use lockstep_model::pods::pod::Stage;
use lockstep_model::{Admission, Pod};

use super::provisioning_table::HeldRequest;
use super::state::{Key, State, Touched, controller_uid};

fn demand_of(group: Option<&PodGroup>) -> Option<&NodeDemand> {
    group?.status.as_ref()?.demand.as_ref()
}

impl State {
    pub(super) fn has_demand(&self) -> bool {
        !self.provisioning.demanding.is_empty()
    }

    /// Notes the demand of a pod group that is about to be stored, or deleted (`None`).
    pub(super) fn follow_demand(
        &mut self,
        key: &Key,
        group: Option<&PodGroup>,
        touched: &mut Touched,
    ) {
        let now = demand_of(group);
        touched.provisioning |= demand_of(self.pod_groups.get(key).map(|g| &**g)) != now;
        if now.is_some() {
            self.provisioning.demanding.insert(key.clone());
        } else {
            self.provisioning.demanding.remove(key);
        }
    }

    /// Notes a pod in the namespace of signal pods. True if it is a signal pod.
    pub(super) fn see_signal_pod(
        &mut self,
        key: &Key,
        pod: &Pod,
        for_autoscaler: bool,
        touched: &mut Touched,
    ) -> bool {
        let table = &mut self.provisioning;
        if table.mode == AutoscalerMode::Off || *key.namespace != *table.namespace {
            return false;
        }
        let has_label = |label| pod.labels.contains_key(label);
        let signal = SignalPod {
            uid: pod.uid.clone(),
            ours: pod.owner.is_none()
                && for_autoscaler
                && has_label(labels::WORKLOAD_UID)
                && has_label(labels::POD_GROUP),
            stage: match pod.stage {
                _ if pod.terminating.is_some() => SignalStage::Terminating,
                _ if pod.bound.is_some() => SignalStage::Bound,
                Stage::Ended => SignalStage::Bound,
                Stage::Refused => SignalStage::Shown,
                Stage::Open | Stage::Gated => SignalStage::Hidden,
            },
        };
        let ours = signal.ours;
        let old = table.signal_pods.insert(key.name.to_string(), signal);
        touched.provisioning |= old.as_ref() != table.signal_pods.get(&*key.name);
        ours
    }

    /// True if the pod was in the namespace of signal pods.
    pub(super) fn forget_signal_pod(&mut self, key: &Key) -> bool {
        let table = &mut self.provisioning;
        *key.namespace == *table.namespace && table.signal_pods.remove(&*key.name).is_some()
    }

    /// `None` deletes the request.
    pub(super) fn set_request(
        &mut self,
        key: &Key,
        request: Option<HeldRequest>,
        touched: &mut Touched,
    ) {
        let owner = |request: &HeldRequest| request.owner.clone();
        let now = request.as_ref().and_then(owner);
        let old = match request {
            Some(request) => self.provisioning.requests.insert(key.clone(), request),
            None => self.provisioning.requests.remove(key),
        };
        if old.as_ref() == self.provisioning.requests.get(key) {
            return;
        }
        touched.provisioning = true;
        let owners: BTreeSet<Uid> = old
            .as_ref()
            .and_then(owner)
            .into_iter()
            .chain(now)
            .collect();
        for owner in owners {
            let workload = self.workload_keys.get(owner.as_str()).cloned();
            if let Some(workload) = workload.filter(|w| w.namespace == key.namespace) {
                self.read_gangs_of(&workload, touched);
                touched.workloads.insert(workload);
            }
        }
    }

    /// The request for the current try of a gang, if its workload controls it.
    pub(super) fn request_of(
        &self,
        key: &Key,
        group: &PodGroup,
        workload: &str,
    ) -> Option<&HeldRequest> {
        let demand = demand_of(Some(group))?;
        let name = provisioning_request_name(&key.name, demand.number, demand.since);
        let request = self
            .provisioning
            .requests
            .get(&Key::new(&*key.namespace, name));
        request.filter(|r| r.owner.as_ref().is_some_and(|owner| *owner == *workload))
    }

    /// The request whose capacity the next pods of a gang use.
    pub(super) fn provisioned(
        &self,
        key: &Key,
        group: &PodGroup,
        workload: &str,
    ) -> Option<ProvisionedRequest> {
        let request = self.request_of(key, group, workload)?;
        let provisioned = request.state.phase == ProvisioningPhase::Provisioned;
        provisioned.then(|| ProvisionedRequest {
            name: request.state.name.clone(),
            class: request.class.clone(),
        })
    }

    /// The served resource of `ProvisioningRequest`s.
    pub fn requests_resource(&self) -> Option<ApiResource> {
        self.provisioning.version.map(ProvisioningRequest::resource)
    }

    /// Input of the decision which objects show the demand.
    pub fn provisioning_view(&self) -> ProvisioningView {
        let table = &self.provisioning;
        let held = |(key, request): (&Key, &HeldRequest)| (key.clone(), request.held.clone());
        let gangs = table.demanding.iter().filter_map(|key| self.demanding(key));
        ProvisioningView {
            gangs: gangs.collect(),
            pods: table.signal_pods.clone(),
            serves_requests: table.version.is_some(),
            requests: table.requests.iter().map(held).collect(),
            templates: table.templates.clone(),
        }
    }

    /// `None` if its demand is not open, or the gang is leaving.
    fn demanding(&self, key: &Key) -> Option<DemandingGang> {
        let group = self.pod_groups.get(key)?;
        let demand = demand_of(Some(group)).filter(|demand| demand.is_open())?;
        let owner = self.workload_keys.get(controller_uid(&**group)?)?;
        let workload = self.workloads.get(owner)?;
        let deleted = |meta: &kube::api::ObjectMeta| meta.deletion_timestamp.is_some();
        if deleted(&workload.metadata) || deleted(&group.metadata) {
            return None;
        }
        let id = WorkloadId::read(workload)?;
        // Requires that the pod group is the workload's.
        let input = self.gang_inputs.get(key)?;
        let ledger = &input.workload.members;
        let bound = self.bound_members(&id);
        let lacking = input.gang.members().filter(|member| {
            let done = ledger.absent.contains(member) || ledger.finished.contains(member);
            !done && !bound.contains(member)
        });
        let members: Vec<Member> = lacking.cloned().collect();
        Some(DemandingGang {
            pod_group: key.name.to_string(),
            number: demand.number,
            since: demand.since,
            priority: input.group.priority,
            queued_at: input.group.status.queued_at,
            placed: input.group.assigned.is_some(),
            members,
            admitted: self.admitted_templates(&id.uid),
            workload: workload.clone(),
            id,
        })
    }

    fn bound_members<'s>(&'s self, id: &'s WorkloadId) -> BTreeSet<&'s Member> {
        let members = self.members_of(&id.namespace, id.uid.as_str());
        let bound = members.filter(|pod| pod.node.is_some() && pod.is_live());
        bound
            .filter_map(|pod| pod.identity.member.as_ref())
            .collect()
    }

    fn admitted_templates(&self, workload: &Uid) -> BTreeMap<String, AdmittedTemplate> {
        let admitted = self.admitted.get(workload);
        let groups = admitted.iter().flat_map(|spec| &spec.pods.groups);
        let known = groups.filter_map(|(group, admission)| match admission {
            Admission::As(pod) => {
                let (labels, spec) = (pod.labels.clone(), pod.spec.clone());
                Some((group.clone(), AdmittedTemplate { labels, spec }))
            }
            Admission::Failed(_) | Admission::Unsupported(_) => None,
        });
        known.collect()
    }
}
