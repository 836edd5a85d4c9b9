//! Pod requests as kube-scheduler counts them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::common::quantity::{InvalidQuantity, MAX_AMOUNT, milli, units};
use crate::pods::pod_view::{ContainerResources, PodSpecView, PodStatusView};
use crate::pods::slots::host_ports;

/// CPU, in thousandths.
pub const CPU: &str = "cpu";
/// Memory, in bytes.
pub const MEMORY: &str = "memory";
pub const PODS: &str = "pods";

/// An amount of a resource with its unit: CPUs, and Gi or Mi of memory and storage.
pub fn with_unit(name: &str, amount: i64) -> String {
    const MIB: i64 = 1 << 20;
    let bytes = name == MEMORY || name == "ephemeral-storage" || name.starts_with("hugepages-");
    match name {
        CPU if amount == 1000 => "1 CPU".to_owned(),
        CPU => format!("{} CPUs", decimal(amount, 1000)),
        _ if bytes && amount >= 1024 * MIB => format!("{}Gi", decimal(amount, 1024 * MIB)),
        _ if bytes && amount >= MIB => format!("{}Mi", decimal(amount, MIB)),
        _ if bytes => format!("{amount} bytes"),
        _ => amount.to_string(),
    }
}

/// The amount in a larger unit, with at most three decimals, rounded up.
fn decimal(amount: i64, unit: i64) -> String {
    let thousandths = (i128::from(amount) * 1000 + i128::from(unit) - 1) / i128::from(unit);
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    let text = text.trim_end_matches('0');
    text.trim_end_matches('.').to_owned()
}

/// Amounts by resource name: CPU in thousandths, other resources in whole units. Zero amounts are
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources(BTreeMap<String, i64>);

impl Resources {
    pub fn parse(quantities: &BTreeMap<String, Quantity>) -> Result<Self, InvalidQuantity> {
        let mut out = Self::default();
        for (name, quantity) in quantities {
            let amount = if name == CPU {
                milli(&quantity.0)?
            } else {
                units(&quantity.0)?
            };
            out.set(name, amount);
        }
        Ok(out)
    }

    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, &amount)| (name.as_str(), amount))
    }

    fn set(&mut self, name: &str, amount: i64) {
        if amount > 0 {
            self.0.insert(name.to_owned(), amount.min(MAX_AMOUNT));
        } else {
            self.0.remove(name);
        }
    }

    fn add(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            self.set(name, self.get(name) + amount);
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            self.set(name, self.get(name).max(amount));
        }
    }
}

impl<N: Into<String>> FromIterator<(N, i64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (N, i64)>>(amounts: I) -> Self {
        let mut out = Self::default();
        for (name, amount) in amounts {
            out.set(&name.into(), amount);
        }
        out
    }
}

/// Resources that a pod with this spec requests on its node, including the pod itself.
///
/// Equals `PodRequests` of k8s.io/component-helpers/resource: the sum of containers and sidecars,
/// or the largest init container plus the sidecars started before it, whichever is more. Pod-level
/// requests replace that sum, and overhead is added. A missing request defaults to the limit, as in
/// the API server.
pub fn pod_requests(spec: &PodSpecView) -> Result<Resources, InvalidQuantity> {
    let whole = requests(spec.resources.as_ref())?;
    requests_of(spec, |c| requests(c.resources.as_ref()), &whole)
}

fn requests_of(
    spec: &PodSpecView,
    of: impl Fn(&ContainerResources) -> Result<Resources, InvalidQuantity>,
    whole: &Resources,
) -> Result<Resources, InvalidQuantity> {
    let mut out = counted(spec, of, whole)?;
    out.add(&Resources::parse(&spec.overhead)?);
    out.set(PODS, 1);
    Ok(out)
}

/// Limits, counted as in [`pod_requests`].
pub(crate) fn pod_limits(spec: &PodSpecView) -> Result<Resources, InvalidQuantity> {
    let limits = |resources: Option<&ResourceRequirements>| {
        let limits = resources.and_then(|r| r.limits.as_ref());
        limits.map_or_else(|| Ok(Resources::default()), Resources::parse)
    };
    let whole = limits(spec.resources.as_ref())?;
    counted(spec, |c| limits(c.resources.as_ref()), &whole)
}

/// Resources that a pod takes on its node: requests plus slots ([`crate::pods::slots`]).
pub(crate) fn pod_takes(spec: &PodSpecView) -> Result<Resources, InvalidQuantity> {
    Ok(with_ports(spec, pod_requests(spec)?))
}

/// As [`pod_takes`], of a pod that may be resized in place, as kube-scheduler counts it: the largest
/// of the requests of the spec, the allocated and the applied ones. A request that the node can
/// never allocate does not count.
pub(crate) fn resized_pod_takes(
    spec: &PodSpecView,
    status: &PodStatusView,
) -> Result<Resources, InvalidQuantity> {
    let infeasible = status.resize_is_infeasible();
    let largest = |desired: Option<&ResourceRequirements>,
                   allocated: &BTreeMap<String, Quantity>,
                   applied: Option<&ResourceRequirements>| {
        let mut out = Resources::parse(allocated)?;
        if let Some(applied) = applied.and_then(|r| r.requests.as_ref()) {
            out.raise(&Resources::parse(applied)?);
        }
        if out.0.is_empty() || !infeasible {
            out.raise(&requests(desired)?);
        }
        Ok(out)
    };
    let mut whole = requests(spec.resources.as_ref())?;
    if whole.iter().any(|(name, _)| pod_level(name)) && status.resources.is_some() {
        let (allocated, applied) = (&status.allocated_resources, status.resources.as_ref());
        whole = largest(spec.resources.as_ref(), allocated, applied)?;
    }
    let of = |container: &ContainerResources| {
        let desired = container.resources.as_ref();
        match status.container(&container.name) {
            None => requests(desired),
            Some(held) => largest(desired, &held.allocated_resources, held.resources.as_ref()),
        }
    };
    Ok(with_ports(spec, requests_of(spec, of, &whole)?))
}

fn with_ports(spec: &PodSpecView, mut requests: Resources) -> Resources {
    for port in host_ports(spec) {
        requests.set(&port, 1);
    }
    requests
}

/// Requests or limits over the containers of a pod. `whole`: those of the whole pod.
fn counted(
    spec: &PodSpecView,
    of: impl Fn(&ContainerResources) -> Result<Resources, InvalidQuantity>,
    whole: &Resources,
) -> Result<Resources, InvalidQuantity> {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of(container)?);
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in &spec.init_containers {
        let mut own = of(container)?;
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&own);
            sidecars.add(&own);
            starting.raise(&sidecars);
        } else {
            own.add(&sidecars);
            starting.raise(&own);
        }
    }
    running.raise(&starting);
    for (name, amount) in whole.iter().filter(|(name, _)| pod_level(name)) {
        running.set(name, amount);
    }
    Ok(running)
}

/// Resources supported at pod level (`IsSupportedPodLevelResource`).
fn pod_level(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with("hugepages-")
}

fn requests(resources: Option<&ResourceRequirements>) -> Result<Resources, InvalidQuantity> {
    let Some(resources) = resources else {
        return Ok(Resources::default());
    };
    let limits = resources.limits.as_ref();
    let requests = resources.requests.as_ref();
    let mut quantities = limits.cloned().unwrap_or_default();
    quantities.extend(
        requests
            .into_iter()
            .flatten()
            .map(|(name, q)| (name.clone(), q.clone())),
    );
    Resources::parse(&quantities)
}

/// Extended resources in these requests: names with a domain outside kubernetes.io.
pub fn extended_resources<'r>(requests: impl Iterator<Item = &'r Resources>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, amount) in requests.flat_map(Resources::iter) {
        if is_extended(name) && amount > 0 {
            names.insert(name.to_owned());
        }
    }
    names
}

pub(crate) fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| !domain.ends_with("kubernetes.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::{Value, json};

    #[test]
    fn a_resize_in_place_counts_as_kube_scheduler_counts_it() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": "1"}}});
        let takes = |cpu: &str, status: Value| {
            let spec = json!({"containers": [container(cpu)]});
            let spec: PodSpecView = serde_json::from_value(spec).unwrap();
            let status: PodStatusView = serde_json::from_value(status).unwrap();
            let all = resized_pod_takes(&spec, &status).unwrap();
            (all.get(CPU), all.get("nvidia.com/gpu"))
        };
        let held = |cpu: &str| {
            let amounts = json!({"cpu": cpu, "nvidia.com/gpu": "1"});
            json!([{"name": "c", "allocatedResources": amounts, "resources": {"requests": amounts}}])
        };
        let waits = json!({"containerStatuses": held("4")});
        assert_eq!(takes("2", waits.clone()), (4_000, 1));
        assert_eq!(takes("8", waits.clone()), (8_000, 1));
        let mut never = waits;
        never["conditions"] =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(takes("800", never), (4_000, 1));
        assert_eq!(takes("2", json!({})), (2_000, 1));
    }

    #[test]
    fn a_resize_of_the_whole_pod_counts_in_the_same_way() {
        let takes = |cpu: &str, status: Value| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
            let spec = json!({"containers": [container], "resources": {"requests": {"cpu": cpu}}});
            let spec: PodSpecView = serde_json::from_value(spec).unwrap();
            let status: PodStatusView = serde_json::from_value(status).unwrap();
            resized_pod_takes(&spec, &status).unwrap().get(CPU)
        };
        let held =
            json!({"allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "3"}}});
        assert_eq!(takes("2", held.clone()), 4_000);
        assert_eq!(takes("8", held.clone()), 8_000);
        let mut never = held;
        never["conditions"] =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(takes("800", never), 4_000);
        assert_eq!(takes("2", json!({})), 2_000);
    }

    #[test]
    fn amounts_have_the_units_that_users_write() {
        let each = [
            (CPU, 64_250, "64.25 CPUs"),
            (CPU, 1000, "1 CPU"),
            (MEMORY, 2 << 40, "2048Gi"),
            (MEMORY, (1 << 30) + 1, "1.001Gi"),
            ("hugepages-2Mi", 4 << 20, "4Mi"),
            ("ephemeral-storage", 17, "17 bytes"),
            ("nvidia.com/gpu", 8, "8"),
        ];
        for (name, amount, text) in each {
            assert_eq!(with_unit(name, amount), text);
        }
    }

    fn count(spec: Value) -> BTreeMap<String, i64> {
        let spec: PodSpecView = serde_json::from_value(spec).unwrap();
        let mut out = pod_requests(&spec).unwrap().0;
        assert_eq!(out.remove(PODS), Some(1));
        out
    }

    fn cpu(amount: &str) -> Value {
        json!({"resources": {"requests": {"cpu": amount}}})
    }

    fn sidecar(amount: &str) -> Value {
        json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": amount}}})
    }

    #[test]
    fn containers_add_up_and_a_missing_request_is_the_limit() {
        let got = count(json!({"containers": [
            {"resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "4"}, "requests": {"cpu": "2"}}},
            {"resources": {"requests": {"memory": "1Gi"}}}, {}]}));
        assert_eq!(
            got,
            [("cpu", 2000), ("memory", 1 << 30), ("nvidia.com/gpu", 8)]
                .map(|(n, a)| (n.to_owned(), a))
                .into()
        );
    }

    #[test]
    fn an_init_container_counts_with_the_sidecars_started_before_it() {
        for (init, expected) in [
            (vec![cpu("5")], 5000),
            (vec![cpu("1")], 2000),
            (vec![sidecar("1"), cpu("4")], 5000),
            (vec![cpu("4"), sidecar("1")], 4000),
            (vec![sidecar("1"), sidecar("2")], 5000),
            (vec![sidecar("1"), cpu("2"), sidecar("3")], 6000),
        ] {
            let got = count(json!({"containers": [cpu("2")], "initContainers": init}));
            assert_eq!(got.get("cpu"), Some(&expected), "{init:?}");
        }
    }

    #[test]
    fn pod_level_requests_replace_container_requests_and_overhead_is_added() {
        let got = count(json!({
            "containers": [{"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}],
            "resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "9"}},
            "overhead": {"cpu": "250m", "memory": "10Mi"}}));
        assert_eq!(
            got,
            [("cpu", 3250), ("memory", 10 << 20), ("nvidia.com/gpu", 1)]
                .map(|(n, a)| (n.to_owned(), a))
                .into()
        );
    }

    #[test]
    fn a_bad_quantity_is_reported() {
        let spec: PodSpecView =
            serde_json::from_value(json!({"containers": [cpu("lots")]})).unwrap();
        assert_eq!(
            pod_requests(&spec).unwrap_err().to_string(),
            "\"lots\" is not a quantity"
        );
    }

    #[test]
    fn a_template_and_its_pod_have_equal_requests() {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]});
        let template: PodSpec = serde_json::from_value(spec.clone()).unwrap();
        let pod: PodSpecView = serde_json::from_value(spec).unwrap();
        assert_eq!(
            pod_requests(&PodSpecView::from(&template)),
            pod_requests(&pod)
        );
    }
}
