//! Members that do not start because of image, command or scheduler.

use lockstep_api::condition::find;
use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

/// Start deadline in seconds.
const DEADLINE: i64 = 20;

fn spec(n: i32) -> Value {
    gang_with(
        n,
        &json!({"failurePolicy": {"startDeadlineSeconds": DEADLINE}}),
    )
}

/// From now on, pods of these members fail with this reason before their training container exists.
fn cannot_be_created(w: &mut Solo, reason: &'static str, of: &'static [&'static str]) {
    w.store().admission.webhook = Some(Box::new(move |pod| {
        let labels = &pod["metadata"]["labels"];
        let replica = labels["training.lockstep.dev/replica"].as_str();
        if replica.is_some_and(|replica| of.contains(&replica)) {
            let env = json!({"name": "HOLLOW_NOT_CREATED", "value": reason});
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            let list = &mut containers[0]["env"];
            match list.as_array_mut() {
                Some(list) => list.push(env),
                None => *list = json!([env]),
            }
        }
        Ok(())
    }));
}

fn can_be_created(w: &mut Solo) {
    w.store().admission.webhook = None;
}

fn message(w: &Solo, type_: &str) -> String {
    let status = w.status();
    find(&status.conditions, type_).map_or(String::new(), |c| c.message.clone())
}

/// Seconds until the workload has failed.
fn seconds_to_failure(w: &mut Solo, most: i64) -> i64 {
    for second in 0..most {
        if w.status().phase == Some(Phase::Failed) {
            return second;
        }
        w.rounds(1);
    }
    panic!("it has not failed within {most} s:\n{}", w.story(40));
}

fn has_avoided(w: &Solo) -> bool {
    let statuses = w.written();
    let mut gangs = statuses.iter().flat_map(|s| &s.gangs);
    gangs.any(|g| !g.avoid.is_empty())
}

/// No written status contains this word.
fn never_says(w: &Solo, word: &str) -> bool {
    !w.written()
        .iter()
        .any(|s| s.conditions.iter().any(|c| c.message.contains(word)))
}

#[test]
fn an_image_that_cannot_be_pulled_is_named_in_ready_within_seconds() {
    for supervised in [false, true] {
        let mut w = Solo::supervised_if(supervised, gang(2));
        cannot_be_created(&mut w, "ErrImagePull", &["0", "1"]);
        w.rounds(8);
        assert_eq!(w.condition("Ready"), "!ImageUnavailable");
        let says = message(&w, "Ready");
        let names = says.contains("0/2 members are ready")
            && says.contains("pod w-g-0-0-")
            && says.contains("container t waits: ErrImagePull");
        assert!(names, "{says}");
        let s = w.status();
        assert_eq!(
            (s.phase, s.reason),
            (Some(Phase::Starting), "ImageUnavailable".into())
        );
    }
}

#[test]
fn a_pod_without_its_volumes_is_named_in_ready_after_half_a_minute() {
    let mut w = Solo::supervised(gang(2));
    cannot_be_created(&mut w, "FailedMount", &["0", "1"]);
    w.rounds(8);
    let says = message(&w, "Ready");
    assert_eq!(says, "0/2 members are ready or have succeeded");
    w.rounds(40);
    assert_eq!(w.condition("Ready"), "!MembersNotReady");
    let says = message(&w, "Ready");
    let names = says.contains("pod w-g-0-0-") && says.contains("volumes or network are not ready");
    assert!(names, "{says}");
}

#[test]
fn an_image_that_cannot_be_pulled_fails_the_workload_after_three_starts() {
    for policy in ["Gang", "Basic"] {
        let mut spec = spec(2);
        spec["scheduling"]["policy"] = json!(policy);
        let mut w = Solo::supervised(spec);
        cannot_be_created(&mut w, "ErrImagePull", &["0", "1"]);
        let seconds = seconds_to_failure(&mut w, 200);
        assert!(seconds > 3 * DEADLINE, "{policy}: {seconds} s");
        let s = w.status();
        assert_eq!(w.condition("Failed"), "ImageUnavailable", "{policy}");
        assert_eq!(
            (
                s.message.contains("3 starts in a row failed"),
                s.message.contains("container t waits: ErrImagePull")
            ),
            (true, true),
            "{policy}: {}",
            s.message
        );
        assert_eq!(s.restarts.counted, 0, "{policy}");
        assert!(!has_avoided(&w), "{policy}: no node is the cause");
        assert!(never_says(&w, "supervisor did"), "{policy}");
        w.settle();
        assert!(w.pods().is_empty(), "{policy}: the nodes are free");
    }
}

#[test]
fn a_registry_that_comes_back_before_the_third_start_fails_nothing() {
    let mut w = Solo::new(spec(2));
    cannot_be_created(&mut w, "ErrImagePull", &["0", "1"]);
    w.until("two failed starts", |w| {
        w.status().gangs.first().is_some_and(|g| g.start_tries == 2)
    });
    can_be_created(&mut w);
    w.settle();
    let s = w.status();
    assert_eq!((s.phase, s.gangs[0].start_tries), (Some(Phase::Running), 0));
}

#[test]
fn a_node_that_alone_cannot_pull_an_image_is_avoided() {
    let mut w = Solo::new(spec(2));
    cannot_be_created(&mut w, "ErrImagePull", &["1"]);
    w.until("the first failed start", |w| {
        w.status().gangs.first().is_some_and(|g| g.start_tries == 1)
    });
    let avoid = w.status().gangs[0].avoid.clone();
    assert_eq!(
        avoid.iter().map(|a| a.reason.as_str()).collect::<Vec<_>>(),
        ["ImageUnavailable"],
        "{}",
        w.story(20)
    );
    can_be_created(&mut w);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_ne!(w.node_of("g", 1), avoid[0].node);
}

#[test]
fn an_image_that_is_gone_when_a_member_is_replaced_fails_the_workload_in_the_end() {
    let mut w = Solo::new(spec(2));
    w.settle();
    cannot_be_created(&mut w, "ErrImagePull", &["1"]);
    w.delete_pod("g", 1);
    w.until("the problem in Ready", |w| {
        w.condition("Ready") == "!ImageUnavailable"
    });
    let of = |w: &Solo| w.uids().get("g-0-0").cloned();
    let survivor = of(&w);
    w.rounds(2 * DEADLINE as usize);
    assert_eq!(of(&w), survivor, "the other member holds its node at first");
    seconds_to_failure(&mut w, 400);
    assert_eq!(w.condition("Failed"), "ImageUnavailable");
}

#[test]
fn a_secret_that_does_not_exist_is_named_and_costs_no_node() {
    let mut w = Solo::new(spec(1));
    cannot_be_created(&mut w, "CreateContainerConfigError", &["0"]);
    w.rounds(8);
    assert_eq!(w.condition("Ready"), "!StartError");
    assert!(message(&w, "Ready").contains("container t waits: CreateContainerConfigError"));
    seconds_to_failure(&mut w, 200);
    assert_eq!(w.condition("Failed"), "StartError");
    assert!(!has_avoided(&w));
}

#[test]
fn an_image_name_that_cannot_be_parsed_holds_no_node_until_the_deadline() {
    let mut w = Solo::new(gang(2));
    cannot_be_created(&mut w, "InvalidImageName", &["0", "1"]);
    let seconds = seconds_to_failure(&mut w, 100);
    assert!(seconds < 60, "{seconds} s");
    assert_eq!(w.condition("Failed"), "ImageUnavailable");
}

#[test]
fn a_command_that_does_not_exist_fails_the_workload_after_three_starts() {
    for supervised in [false, true] {
        let mut spec = gang_with(2, &json!({"failurePolicy": {"limits": {"maxRestarts": 2}}}));
        spec["groups"][0]["template"]["spec"]["containers"][0]["env"] = json!([
            {"name": "HOLLOW_EXIT", "value": "128"}, {"name": "HOLLOW_REASON", "value": "StartError"}]);
        let mut w = Solo::supervised_if(supervised, spec);
        seconds_to_failure(&mut w, 100);
        let s = w.status();
        assert_eq!(w.condition("Failed"), "StartError");
        assert!(
            s.message.contains("exit code 128 (StartError)"),
            "{}",
            s.message
        );
        assert_eq!(s.restarts.counted, 0);
        assert!(!has_avoided(&w));
    }
}

#[test]
fn a_scheduler_that_does_not_exist_is_named_within_seconds_and_costs_no_node() {
    for supervised in [false, true] {
        let mut spec = spec(2);
        spec["groups"][0]["template"]["spec"]["schedulerName"] = json!("volcano");
        let mut w = Solo::supervised_if(supervised, spec);
        w.rounds(15);
        assert_eq!(w.condition("Ready"), "!NotBound");
        let says = message(&w, "Ready");
        let names = says.contains("no scheduler has bound pod w-g-0-0-")
            && says.contains("schedulerName is volcano");
        assert!(names, "{says}");
        seconds_to_failure(&mut w, 200);
        assert_eq!(w.condition("Failed"), "NotBound");
        assert!(w.status().message.contains("schedulerName is volcano"));
        assert!(!has_avoided(&w));
        assert!(never_says(&w, "supervisor did"));
    }
}

#[test]
fn an_outage_of_the_default_scheduler_fails_no_workload() {
    let mut w = Solo::new(spec(2));
    w.store().schedulers.clear();
    w.rounds(15);
    assert_eq!(w.condition("Ready"), "!NotBound");
    w.rounds(5 * DEADLINE as usize);
    let s = w.status();
    assert_eq!(
        (w.condition("Failed"), s.gangs[0].start_tries),
        ("absent".into(), 0)
    );
    assert!(!has_avoided(&w));
    w.store().schedulers.insert("default-scheduler".to_owned());
    w.rounds(100);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_gang_without_a_start_problem_says_only_how_many_members_are_ready() {
    let mut w = Solo::new(gang(2));
    w.faults(|f| f.starts_nothing = true);
    w.rounds(30);
    assert_eq!(w.condition("Ready"), "!MembersNotReady");
    assert_eq!(
        message(&w, "Ready"),
        "0/2 members are ready or have succeeded"
    );
}

/// A runtime that is the node's default can hide the socket of the supervisor from the agent.
#[test]
fn a_gang_whose_supervisors_no_agent_reaches_names_the_remedy() {
    let mut w = Solo::supervised(spec(4));
    w.rounds(1);
    for node in ["n0", "n1", "n2", "n3"] {
        w.fault(node, |f| f.silent_agent = true);
    }
    w.rounds(240);
    let remedy = "set failurePolicy.inPlace.supervisor to Never";
    let statuses = w.written();
    let mut conditions = statuses.iter().flat_map(|status| &status.conditions);
    let named = conditions.any(|c| c.type_ == "Admitted" && c.message.contains(remedy));
    assert!(named, "{}", w.story(40));
}
