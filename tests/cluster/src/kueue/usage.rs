//! What a ClusterQueue has given away, at every change of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use futures_util::future::join3;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::wait::eventually;

/// The resource that tests have quota for.
const GPUS: &str = "nvidia.com/gpu";

/// A kind of Kueue.
pub fn kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind))
}

/// True if a condition of an object is True.
pub fn is_true(object: &DynamicObject, type_: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == type_ && c["status"] == "True")
}

/// Accelerators in use by kind of evidence, and what contradicts the quota.
#[derive(Debug, Default)]
struct Seen {
    quota: i64,
    /// Status of the ClusterQueue.
    queue: i64,
    /// Of each Workload with quota, by its name: its owner and its accelerators.
    reserved: BTreeMap<String, (String, i64)>,
    /// Of each pod that has not ended, by its name.
    pods: BTreeMap<String, i64>,
    /// Workloads that are admitted.
    admitted: BTreeSet<String>,
    /// Number of admissions by the UID of the owner.
    admissions: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Seen {
    fn check(&mut self) {
        let mut owners = BTreeSet::new();
        let twice = self.reserved.values().find(|(o, _)| !owners.insert(o));
        let uses = [
            ("the ClusterQueue uses", self.queue),
            (
                "Workloads hold",
                self.reserved.values().map(|(_, n)| n).sum(),
            ),
            ("pods use", self.pods.values().sum()),
        ];
        let mut wrong: Vec<_> = twice
            .map(|(owner, _)| format!("two Workloads of {owner} have quota"))
            .into_iter()
            .collect();
        let above = uses.into_iter().filter(|(_, used)| *used > self.quota);
        wrong.extend(above.map(|(what, used)| format!("{what} {used} of {}", self.quota)));
        for what in wrong {
            self.wrong.push(format!(
                "{what}: {:?} {:?} {}",
                self.reserved, self.pods, self.queue
            ));
        }
    }

    fn queue(&mut self, queue: &DynamicObject, there: bool) {
        let status = &queue.data["status"];
        let totals = |field: &str| {
            let flavors = status[field].as_array().into_iter().flatten();
            let resources = flavors.flat_map(|f| f["resources"].as_array().into_iter().flatten());
            resources.map(|r| number(&r["total"])).sum::<i64>()
        };
        self.queue = if there {
            totals("flavorsReservation").max(totals("flavorsUsage"))
        } else {
            0
        };
    }

    fn workload(&mut self, workload: &DynamicObject, there: bool) {
        let name = workload.name_any();
        let owner = workload.owner_references().first();
        let owner = owner.map_or_else(String::new, |o| o.uid.clone());
        let is = |type_| there && is_true(workload, type_);
        if is("QuotaReserved") && !is("Finished") {
            let sets = &workload.data["status"]["admission"]["podSetAssignments"];
            let sets = sets.as_array().into_iter().flatten();
            // Kueue counts no pods that have ended.
            let used = sets
                .map(|set| {
                    let (usage, count) = (number(&set["resourceUsage"][GPUS]), &set["count"]);
                    let count = count.as_i64().unwrap_or(1).max(1);
                    usage * (count - reclaimed(workload, &set["name"])) / count
                })
                .sum();
            self.reserved.insert(name.clone(), (owner.clone(), used));
        } else {
            self.reserved.remove(&name);
        }
        if !is("Admitted") {
            self.admitted.remove(&name);
        } else if self.admitted.insert(name) {
            *self.admissions.entry(owner).or_default() += 1;
        }
    }

    fn pod(&mut self, pod: &Pod, there: bool) {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if there && !matches!(phase, Some("Succeeded" | "Failed")) {
            let containers = pod.spec.iter().flat_map(|s| &s.containers);
            let limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
            let limits = limits.filter_map(|limits| limits.get(GPUS));
            let used = limits.filter_map(|Quantity(n)| n.parse::<i64>().ok()).sum();
            self.pods.insert(pod.name_any(), used);
        } else {
            self.pods.remove(&pod.name_any());
        }
    }
}

/// Number of pods of a pod set that have returned their quota.
fn reclaimed(workload: &DynamicObject, pod_set: &Value) -> i64 {
    let all = workload.data["status"]["reclaimablePods"].as_array();
    let mut all = all.into_iter().flatten();
    let own = all.find(|pods| pods["name"] == *pod_set);
    own.and_then(|pods| pods["count"].as_i64())
        .unwrap_or_default()
}

/// A quantity without a suffix.
fn number(quantity: &Value) -> i64 {
    quantity
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// Follows objects for ever. `change` is called with each change, and with false for an object that
/// is gone.
fn follow<K>(
    api: Api<K>,
    seen: Arc<Mutex<Seen>>,
    change: impl Fn(&mut Seen, &K, bool),
) -> impl Future<Output = ()>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut there: BTreeMap<String, K> = BTreeMap::new();
    let mut before = BTreeMap::new();
    watcher(api, watcher::Config::default())
        .default_backoff()
        .for_each(move |event| {
            let mut seen = lock(&seen);
            match event {
                Ok(Event::Init) => before = std::mem::take(&mut there),
                Ok(Event::InitApply(object)) => {
                    before.remove(&object.name_any());
                    there.insert(object.name_any(), object);
                }
                Ok(Event::InitDone) => {
                    for gone in std::mem::take(&mut before).values() {
                        change(&mut seen, gone, false);
                    }
                    for object in there.values() {
                        change(&mut seen, object, true);
                    }
                }
                Ok(Event::Apply(object)) => {
                    change(&mut seen, &object, true);
                    there.insert(object.name_any(), object);
                }
                Ok(Event::Delete(object)) => {
                    change(&mut seen, &object, false);
                    there.remove(&object.name_any());
                }
                // Repeated, also while the API is not served.
                Err(_) => {}
            }
            seen.check();
            std::future::ready(())
        })
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Follows the ClusterQueue of a namespace, and the Workloads and pods in it.
#[derive(Debug)]
pub struct Usage {
    seen: Arc<Mutex<Seen>>,
    /// Ends with this value.
    _task: JoinSet<()>,
}

impl Usage {
    /// Begins to follow a queue of [`super::Kueue::create_queue`] with this quota.
    pub fn follow(client: &Client, namespace: &str, quota: i64) -> Self {
        let seen = Arc::new(Mutex::new(Seen {
            quota,
            ..Seen::default()
        }));
        let own = namespace.to_owned();
        let workloads = Api::namespaced_with(client.clone(), namespace, &kind("Workload"));
        let queues: Api<DynamicObject> = Api::all_with(client.clone(), &kind("ClusterQueue"));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let all = join3(
            follow(queues, seen.clone(), move |seen, queue, there| {
                if queue.name_any() == own {
                    seen.queue(queue, there);
                }
            }),
            follow(workloads, seen.clone(), Seen::workload),
            follow(pods, seen.clone(), Seen::pod),
        );
        let mut task = JoinSet::new();
        task.spawn(async {
            all.await;
        });
        Self { seen, _task: task }
    }

    /// Fails if usage was above the quota at any time so far, or an object had quota twice.
    pub fn within(&self) -> Result<()> {
        let wrong = &lock(&self.seen).wrong;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Waits until nothing uses the queue, and checks that usage was never above the quota.
    pub async fn ends(&self, within: Duration) -> Result<()> {
        eventually("the quota to be free", within, async || {
            let seen = lock(&self.seen);
            let free = seen.queue == 0 && seen.reserved.is_empty() && seen.pods.is_empty();
            ensure!(free, "{seen:?}");
            Ok(())
        })
        .await?;
        self.within()
    }

    /// How often Workloads of an owner were admitted.
    pub fn admissions(&self, owner: &str) -> usize {
        lock(&self.seen).admissions.get(owner).copied().unwrap_or(0)
    }
}
