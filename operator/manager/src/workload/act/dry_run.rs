use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use lockstep_api::names::labels;
use lockstep_api::tier::Tier;
use lockstep_lifecycle::WorkloadView;
use lockstep_lifecycle::view::DryRun;
use lockstep_model::Admission;

use super::{ActionSender, DryRunResults};
use crate::api::error::{ApiError, ErrorClass};

/// Part of the error of an API server with a webhook that does not support dry runs
/// (`NewDryRunUnsupportedErr` of k8s.io/apiserver).
const NO_DRY_RUN: &str = "does not support dry run";

enum PodVerdict {
    /// Admitted with its restart rules, or rejected for a reason that can pass.
    Kept(Admission),
    /// Admitted without its restart rules, or dry runs are not supported.
    Dropped(Admission),
    Invalid(String),
}

async fn dry_run_pod(
    api: &Api<Pod>,
    params: &PostParams,
    pod: &Pod,
) -> Result<PodVerdict, ApiError> {
    let error = match api.create(params, pod).await {
        Ok(admitted) => {
            let kept = keeps_restart_rules(pod, &admitted);
            let admission = Admission::As(Box::new(admitted.into()));
            return Ok(if kept {
                PodVerdict::Kept(admission)
            } else {
                PodVerdict::Dropped(admission)
            });
        }
        Err(error) => ApiError::from(error),
    };
    match error.class {
        ErrorClass::Invalid if error.message.contains(NO_DRY_RUN) => {
            Ok(PodVerdict::Dropped(Admission::Unsupported(error.message)))
        }
        ErrorClass::Invalid => Ok(PodVerdict::Invalid(error.message)),
        ErrorClass::Forbidden | ErrorClass::AlreadyExists => {
            Ok(PodVerdict::Kept(Admission::Failed(error.message)))
        }
        _ => Err(error),
    }
}

fn group_of(pod: &Pod) -> String {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|l| l.get(labels::GROUP))
        .cloned()
        .unwrap_or_default()
}

impl ActionSender {
    /// Dry-runs one pod per group. An invalid pod is a verdict on the template. Other rejections
    /// can pass, and the real create would repeat them. `without`: without a result.
    pub(super) async fn dry_run(
        &self,
        view: &WorkloadView,
        without: DryRun,
        pods: &[Pod],
        restart_all: &Pod,
    ) -> Result<DryRunResults, ApiError> {
        let api: Api<Pod> = self.actor.writes(view.namespace());
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let mut verdict = DryRun {
            tier: Tier::RestartAll,
            ..without
        };
        let mut admitted = BTreeMap::new();
        for pod in pods {
            let admission = match dry_run_pod(&api, &params, pod).await? {
                PodVerdict::Kept(admission) => admission,
                PodVerdict::Dropped(admission) => {
                    verdict.tier = Tier::Plain;
                    admission
                }
                PodVerdict::Invalid(message) => {
                    verdict.invalid = Some(message);
                    break;
                }
            };
            admitted.insert(group_of(pod), admission);
        }
        if verdict.invalid.is_none() && verdict.tier.restarts_whole_pod() {
            match dry_run_pod(&api, &params, restart_all).await? {
                PodVerdict::Kept(_) => {}
                PodVerdict::Dropped(_) | PodVerdict::Invalid(_) => {
                    verdict.tier = Tier::RestartRules;
                }
            }
        }
        Ok(DryRunResults {
            dry_run: verdict,
            pods: admitted,
        })
    }
}

pub(super) fn failed_dry_run(without: DryRun, pods: &[Pod], error: &ApiError) -> DryRunResults {
    let admission = Admission::Failed(error.message.clone());
    let groups = pods.iter().map(|pod| (group_of(pod), admission.clone()));
    DryRunResults {
        dry_run: DryRun {
            failed: true,
            ..without
        },
        pods: groups.collect(),
    }
}

pub(super) fn empty_dry_run(spec_hash: String, now: DateTime<Utc>) -> DryRun {
    DryRun {
        spec_hash,
        at: now,
        until: now,
        invalid: None,
        tier: Tier::Plain,
        failed: false,
    }
}

/// True if the server kept the restart rules. Without KEP-5307, it drops them without an error.
fn keeps_restart_rules(sent: &Pod, stored: &Pod) -> bool {
    restart_actions(sent).eq(restart_actions(stored))
}

fn restart_actions(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let rules = containers.flat_map(|c| c.restart_policy_rules.iter().flatten());
    rules.map(|r| r.action.as_str())
}
