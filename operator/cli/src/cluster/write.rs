//! The only write: one field of one workload, provided that it has not changed since it was read.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_api::TrainingWorkload;

use super::ClusterReader;
use crate::change::FieldChange;
use crate::problem::Problem;

const MANAGER: &str = "kubectl-lockstep";

impl ClusterReader {
    /// Writes a field, or validates the write in a dry run.
    pub async fn write(
        &self,
        workload: &TrainingWorkload,
        change: &FieldChange,
        dry_run: bool,
    ) -> Result<(), Problem> {
        let api: Api<TrainingWorkload> = self.scoped(workload.metadata.namespace.as_deref());
        let name = workload.name_any();
        let params = PatchParams {
            dry_run,
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&change.patch);
        let written = api.patch_metadata(&name, &params, &patch);
        self.ask(written, "trainingworkloads")
            .await
            .map(|_| ())
            .map_err(|problem| match problem {
                Problem::Conflict(_) => Problem::Changed { name },
                Problem::NotInstalled { .. } => Problem::Gone { name },
                other => other,
            })
    }
}
