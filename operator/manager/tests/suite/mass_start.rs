//! Workloads whose gangs are being created delay no other workload.

use std::time::Duration;

use lockstep_manager::clock::{Clock, SystemClock};
use lockstep_manager::run;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fake_api::FakeApi;
use crate::smoke::{PODS, WORKLOADS, deps, node, within, workload};

/// Time from the suspension of a small running workload until its pods are gone, while the gangs of
/// other workloads are created by slow requests.
async fn time_to_suspend(gangs: usize) -> Duration {
    let api = FakeApi::new();
    for n in 0..100 {
        api.put("api/v1/nodes", node(&format!("n{n}")));
    }
    let small = |name: &str, size: i32| {
        let mut w = workload(name);
        w["spec"]["groups"][0]["size"] = json!(size);
        let container = &mut w["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        container["resources"]["requests"]["cpu"] = json!("10m");
        w
    };
    let is_mine = |pod: &Value| {
        pod["metadata"]["name"]
            .as_str()
            .is_some_and(|n| n.starts_with("mine"))
    };
    api.put(WORKLOADS, small("mine", 2));
    let stop = CancellationToken::new();
    let manager = run(deps(&api, "a", &stop));
    let story = async {
        within(api.until(PODS, |pods| pods.len() >= 2)).await;
        api.takes(Duration::from_millis(1200));
        for n in 0..gangs {
            api.put(WORKLOADS, small(&format!("other-{n}"), 100));
        }
        api.until(PODS, |pods| pods.len() > 10 * gangs).await;
        let suspended = json!({"metadata": {"generation": 2}, "spec": {"suspend": true}});
        api.merge(WORKLOADS, "mine", &suspended);
        let since = SystemClock.monotonic();
        api.until(PODS, |pods| !pods.iter().any(is_mine)).await;
        SystemClock.monotonic() - since
    };
    tokio::select! {
        ended = manager => panic!("{ended:?}"),
        took = story => took,
    }
}

#[tokio::test(start_paused = true)]
async fn a_mass_start_delays_no_other_workload() {
    let took = time_to_suspend(48).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}
