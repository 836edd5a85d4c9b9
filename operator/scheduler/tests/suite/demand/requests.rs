//! Tries by `ProvisioningRequest`s.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::NodeState;
use lockstep_api::condition::{find, types};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::names::provisioning_request_name;
use lockstep_api::scheduling::{
    AutoscalerMode, NodeDemand, Placement, PodGroupStatus, ProvisioningPhase, ProvisioningState,
};
use lockstep_model::{ClusterModel, Constraints, Node, Resources, Weights};
use lockstep_scheduler::input::{GangInput, SchedulingInput};
use lockstep_scheduler::messages::demand::DemandEvent;
use lockstep_scheduler::{Memory, SchedulerSettings, Step, schedule};

use crate::inputs;

/// A gang of one member on a cluster without nodes.
struct Alone {
    model: ClusterModel,
    gang: GangInput,
    memory: Memory,
    now: DateTime<Utc>,
    events: Vec<DemandEvent>,
}

fn one_gpu() -> Resources {
    let amounts = [("gpu.example/a".to_owned(), Quantity("1".to_owned()))].into();
    Resources::parse(&amounts).unwrap()
}

impl Alone {
    fn new() -> Self {
        let template = inputs::template("w", one_gpu(), Constraints::default());
        let uids = ["group", "workload"].map(|uid| uid.parse().unwrap());
        let members = vec![Member::new("w", 0, 0)];
        let mut alone = Self {
            model: ClusterModel::default(),
            gang: inputs::gang(Key::new("ml", "gang"), uids, [template].into(), members),
            memory: Memory::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
            events: Vec::new(),
        };
        alone.cycle();
        alone
    }

    /// Runs a cycle. Returns the time of the next one.
    fn cycle(&mut self) -> Option<DateTime<Utc>> {
        let input = SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: vec![Arc::new(self.gang.clone())],
            budgets: Vec::new(),
            quotas: Vec::new(),
            weights: Arc::new(Weights::default()),
        };
        let settings = SchedulerSettings {
            autoscaler: AutoscalerMode::ProvisioningRequest,
            ..SchedulerSettings::default()
        };
        let plan = schedule(&input, &mut self.memory, &settings, self.now).plan;
        for step in plan.steps {
            let Step::Status(write) = step else { continue };
            self.events
                .extend(DemandEvent::between(&write.read, &write.status));
            let placement = write.status.placement.as_ref();
            self.gang.group.assigned = placement.map(Placement::assignments).map(Arc::new);
            self.gang.group.status = Arc::new(write.status);
        }
        plan.wake_after
            .map(|wait| self.now + TimeDelta::from_std(wait).unwrap())
    }

    fn later(&mut self, seconds: i64) {
        self.now += TimeDelta::seconds(seconds);
        self.cycle();
    }

    fn status(&self) -> &PodGroupStatus {
        &self.gang.group.status
    }

    fn demand(&self) -> &NodeDemand {
        self.status().demand.as_ref().unwrap()
    }

    fn text(&self) -> &str {
        let scheduled = find(
            &self.status().conditions,
            types::POD_GROUP_INITIALLY_SCHEDULED,
        );
        &scheduled.unwrap().message
    }

    /// The autoscaler reports this about the current try, in a cycle 10 s later.
    fn reports(&mut self, phase: ProvisioningPhase) {
        self.now += TimeDelta::seconds(10);
        let demand = self.demand();
        self.gang.provisioning = Some(ProvisioningState {
            name: provisioning_request_name("gang", demand.number, demand.since),
            phase,
            since: self.now,
            message: "as the autoscaler says.".to_owned(),
        });
        self.cycle();
    }

    fn node(&mut self) {
        self.model.upsert_node(Node {
            allocatable: one_gpu(),
            state: NodeState::default(),
            ..Node::bare("n".parse().unwrap())
        });
        self.cycle();
    }
}

#[test]
fn the_words_of_the_autoscaler_are_those_of_the_condition() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Accepted);
    let name = provisioning_request_name("gang", 1, alone.demand().since);
    let words = format!("(try 1): {name} is accepted: as the autoscaler says");
    assert!(alone.text().ends_with(&words), "{}", alone.text());
    assert!(alone.demand().is_open());
}

#[test]
fn a_request_that_ends_without_nodes_has_failed() {
    for (phase, why) in [
        (ProvisioningPhase::Failed, "refuses the request"),
        (ProvisioningPhase::BookingExpired, "no longer keeps"),
        (ProvisioningPhase::CapacityRevoked, "removes the nodes"),
    ] {
        let mut alone = Alone::new();
        alone.reports(phase);
        let demand = alone.demand();
        assert_eq!(demand.failed_at, Some(alone.now), "{phase:?}");
        assert!(demand.message.contains(why), "{}", demand.message);
        assert!(demand.message.ends_with("as the autoscaler says"));
        let last = alone.events.last().unwrap();
        assert_eq!((last.warning, last.reason), (true, "NodesNotProvided"));
    }
}

#[test]
fn a_provisioned_request_has_failed_if_the_gang_does_not_fit_for_10_minutes() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Provisioned);
    let wake = alone.cycle();
    assert_eq!(wake, Some(alone.now + TimeDelta::minutes(10)));
    alone.later(599);
    assert!(alone.demand().is_open());
    alone.later(1);
    assert!(!alone.demand().is_open());
}

#[test]
fn a_report_about_an_earlier_try_does_not_count() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Failed);
    alone.later(600);
    assert_eq!((alone.demand().number, alone.demand().failed_at), (2, None));
    alone.later(10);
    assert!(alone.demand().is_open());
    alone.reports(ProvisioningPhase::Failed);
    assert!(!alone.demand().is_open());
}

#[test]
fn a_cycle_follows_at_the_end_of_each_back_off() {
    let mut alone = Alone::new();
    for minutes in [10, 20] {
        alone.reports(ProvisioningPhase::Failed);
        let wake = alone.cycle();
        assert_eq!(wake, Some(alone.now + TimeDelta::minutes(minutes)));
        alone.now = wake.unwrap();
        alone.cycle();
        assert!(alone.demand().is_open());
    }
    alone.reports(ProvisioningPhase::Failed);
    assert_eq!(alone.cycle(), None);
    let events: Vec<&str> = alone.events.iter().map(|e| e.reason).collect();
    assert_eq!(events, ["NodesRequested", "NodesNotProvided"].repeat(3));
}

#[test]
fn a_gang_that_is_placed_elsewhere_requests_no_nodes() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Accepted);
    alone.node();
    assert!(alone.status().placement.is_some());
    assert_eq!(alone.status().demand, None);
}

#[test]
fn a_placed_gang_keeps_its_provisioned_request_until_its_members_are_bound() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Provisioned);
    alone.later(60);
    alone.node();
    assert!(alone.status().placement.is_some());
    assert_eq!(alone.demand().number, 1);
    let last = alone.events.last().unwrap();
    assert_eq!(
        (last.reason, last.note.as_str()),
        (
            "NodesProvided",
            "the gang is placed 70 s after nodes were requested for it"
        )
    );
}

#[test]
fn a_placed_gang_keeps_its_demand_while_its_request_is_unknown() {
    let mut alone = Alone::new();
    alone.reports(ProvisioningPhase::Provisioned);
    alone.node();
    // Another process leads, and has not listed the requests yet.
    let state = alone.gang.provisioning.take();
    alone.memory = Memory::default();
    alone.later(1);
    assert_eq!(alone.demand().number, 1);
    alone.gang.provisioning = state.map(|s| ProvisioningState {
        phase: ProvisioningPhase::Accepted,
        ..s
    });
    alone.later(1);
    assert_eq!(alone.status().demand, None);
}
