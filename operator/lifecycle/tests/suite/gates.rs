//! Feature gates that are off, or change while a gang runs.

use std::collections::BTreeSet;

use lockstep_api::names::annotations;
use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::api::Refused;
use lockstep_sim::pods::leaving;
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

fn tiers(w: &Solo) -> BTreeSet<String> {
    let pods = w.pods().into_iter().filter(|p| !leaving(p));
    let tiers = pods.filter_map(|p| p.metadata.annotations?.remove(annotations::TIER));
    tiers.collect()
}

fn rules(pod: &mut Value) -> &mut Value {
    &mut pod["spec"]["containers"][0]["restartPolicyRules"]
}

#[test]
fn an_api_server_that_knows_no_restart_of_all_containers_gets_no_such_rule() {
    let mut w = Solo::new(gang(2));
    w.store().admission.webhook = Some(Box::new(|pod| {
        let mut rules = rules(pod).as_array().into_iter().flatten();
        if rules.any(|r| r["action"] == "RestartAllContainers") {
            return Err(Refused::invalid("Unsupported value"));
        }
        Ok(())
    }));
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(tiers(&w), ["restart-rules".to_owned()].into());
}

#[test]
fn a_gate_that_is_rolled_back_is_noticed_by_the_next_pods() {
    let mut w = Solo::new(gang_with(
        2,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}}),
    ));
    w.settle();
    assert_eq!(tiers(&w), ["restart-all".to_owned()].into());
    w.store().admission.webhook = Some(Box::new(|pod| {
        rules(pod).take();
        Ok(())
    }));
    w.wait(660);
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(tiers(&w), ["plain".to_owned()].into());
}

#[test]
fn a_node_whose_kubelet_ignores_restart_rules_gives_its_members_new_pods() {
    let mut w = Solo::new(gang(4));
    w.set_restart_all("n0", false);
    w.node("n0").config.restart_rules = false;
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 1);
    w.settle();
    let after = w.uids();
    let kept = before.iter().filter(|(m, uid)| after.get(*m) == Some(uid));
    assert_eq!(kept.count(), 2, "those on the other node restart in place");
    let s = w.status();
    assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 1));
}
