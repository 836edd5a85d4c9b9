//! Gangs as a cycle reads them, for clusters without a manager.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::{DomainKey, GangKey, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::workload::DisruptionMode;
use lockstep_model::{Constraints, Resources, VolumeCheck, VolumeNeeds};
use lockstep_scheduler::hold::GangPhase;
use lockstep_scheduler::input::{
    GangInput, PodGroupInput, TemplateInput, TemplateNodes, WorkloadInput,
};
use lockstep_scheduler::members::{DomainInput, MembersInput};

/// A waiting gang of one restart domain that needs all of its members. It may preempt, at priority 0.
/// The UIDs are those of its pod group and its workload.
pub fn gang(
    key: Key,
    [group, workload]: [Uid; 2],
    templates: Arc<[TemplateInput]>,
    members: Vec<Member>,
) -> GangInput {
    let name = key.name.to_string();
    let domain = || DomainKey::from(&GangKey::whole());
    GangInput {
        key,
        group: PodGroupInput {
            uid: group,
            resource_version: "1".parse().ok(),
            generation: 1,
            deleting: false,
            priority: 0,
            preempts: true,
            whole: true,
            topology: Vec::new(),
            assigned: None,
            status: Arc::default(),
        },
        workload: Arc::new(WorkloadInput {
            uid: workload,
            name,
            generation: 1,
            phase: GangPhase::Active,
            checkpoint: None,
            on_request: None,
            checkpoint_interval: None,
            backend: None,
            templates,
            admitted: 0,
            released: None,
            node_lost: TimeDelta::seconds(60),
            avoid: Vec::new(),
            moving: None,
            placement_tries: 0,
            ends: None,
            quota: None,
            members: MembersInput {
                domains: vec![DomainInput {
                    key: domain(),
                    incident: None,
                    healthy_since: None,
                    request: None,
                }],
                ..MembersInput::default()
            },
        }),
        gang: Arc::new(Gang {
            key: GangKey::whole(),
            template: "workload".to_owned(),
            basic: false,
            min_count: members.len() as i32,
            disruption: DisruptionMode::All,
            domains: vec![Domain {
                key: domain(),
                members,
            }],
        }),
        preemption_priority: None,
        checkpoint_wait: None,
        provisioning: None,
    }
}

/// Pods with a grace period of 30 s that may preempt, on nodes with these constraints.
pub fn template(group: &str, requests: Resources, constraints: Constraints) -> TemplateInput {
    TemplateInput {
        group: group.to_owned(),
        labels: BTreeMap::new(),
        grace: Duration::from_secs(30),
        requests: Ok(Arc::new(requests)),
        nodes: TemplateNodes::Satisfying(constraints),
        volumes: VolumeNeeds::default(),
        storage: VolumeCheck::default(),
        charge: None,
        apart: None,
        avoids: Vec::new(),
        pods_preempt: true,
        not_modelled: None,
        scheduler_name: String::new(),
        foreign_gate: None,
        not_admitted: None,
    }
}
