//! Creates a canary, follows it, and removes it in every case.

use std::time::Duration;

use chrono::{DateTime, Utc};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use lockstep_api::TrainingWorkload;

use super::ClusterReader;
use super::workloads::permitted;
use super::write::MANAGER;
use crate::doctor::Canary;
use crate::problem::Problem;

const POLL: Duration = Duration::from_millis(200);
/// How long the removal may take.
const REMOVAL: Duration = Duration::from_secs(30);
const KIND: &str = "trainingworkloads";

impl ClusterReader {
    /// Follows a canary until it has started, the time is over, or `stop` ends.
    pub async fn canary(
        &self,
        workload: &TrainingWorkload,
        timeout: Duration,
        clock: fn() -> DateTime<Utc>,
        stop: impl Future<Output = ()>,
    ) -> Result<Canary, Problem> {
        let api = self.scoped(workload.metadata.namespace.as_deref());
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let mut canary = Canary::new(clock());
        let created = self.send(api.create(&params, workload), KIND).await?;
        let interrupted = tokio::select! {
            followed = tokio::time::timeout(timeout, self.follow(&created, &mut canary, clock)) => match followed {
                Ok(Err(problem)) => Some(problem.to_string()),
                Ok(Ok(())) | Err(_) => None,
            },
            () = stop => Some("interrupted".to_owned()),
        };
        canary.interrupted = interrupted;
        let removed = tokio::time::timeout(REMOVAL, self.remove(&created)).await;
        let why = match removed {
            Ok(Ok(())) => return Ok(canary),
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("it still exists after {}s", REMOVAL.as_secs()),
        };
        let (namespace, name) = (created.namespace().unwrap_or_default(), created.name_any());
        canary.left = Some(format!(
            "not removed: {why}; run `kubectl delete tw {name} -n {namespace}`"
        ));
        Ok(canary)
    }

    async fn follow(
        &self,
        created: &TrainingWorkload,
        canary: &mut Canary,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<(), Problem> {
        let namespace = created.namespace().unwrap_or_default();
        while !canary.has_ended() {
            let workload = self.workload(&namespace, &created.name_any()).await?;
            let pods = permitted(self.pods_of(created).await)?;
            canary.observe(&workload, pods.as_deref(), clock());
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Deletes the workload, and waits until it and its pods are gone.
    async fn remove(&self, created: &TrainingWorkload) -> Result<(), Problem> {
        let api = self.scoped::<TrainingWorkload>(created.metadata.namespace.as_deref());
        let name = created.name_any();
        let own = DeleteParams::background().preconditions(Preconditions {
            uid: created.metadata.uid.clone(),
            resource_version: None,
        });
        match self.send(api.delete(&name, &own), KIND).await {
            // It is gone already, or another client has created it again.
            Ok(_) | Err(Problem::NotInstalled { .. } | Problem::Conflict(_)) => {}
            Err(other) => return Err(other),
        }
        loop {
            let left = self.send(api.get_opt(&name), KIND).await?;
            let left = left.is_some_and(|w| w.metadata.uid == created.metadata.uid);
            let pods = permitted(self.pods_of(created).await)?;
            if !left && pods.is_none_or(|pods| pods.is_empty()) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
