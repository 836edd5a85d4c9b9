//! Write requests of the plugin: a merge patch of one field of one workload, with the resource version
//! that was read, and server-side dry runs.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::Group;
use serde_json::Value;

use super::ClusterReader;
use crate::change::FieldChange;
use crate::problem::Problem;

pub(super) const MANAGER: &str = "kubectl-lockstep";

impl ClusterReader {
    /// Patches the field. A write after a concurrent change fails with [`Problem::Changed`].
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
        self.send(written, "trainingworkloads")
            .await
            .map(|_| ())
            .map_err(|problem| match problem {
                Problem::Conflict(_) => Problem::Changed { name },
                Problem::NotInstalled { .. } => Problem::Deleted { name },
                other => other,
            })
    }

    /// Validates a manifest with server-side dry runs: schema and unknown fields of the workload,
    /// and one pod per template. Returns a message for each part that was not validated because the
    /// user lacks permission.
    pub async fn validate(
        &self,
        workload: &TrainingWorkload,
        written: &Value,
    ) -> Result<Vec<String>, Problem> {
        let namespace = workload.metadata.namespace.as_deref();
        let api: Api<TrainingWorkload> = self.scoped(namespace);
        let params = PatchParams::apply(MANAGER)
            .force()
            .dry_run()
            .validation_strict();
        let patch = Patch::Apply(written);
        let name = workload.name_any();
        let applied = api.patch(&name, &params, &patch);
        let mut unchecked = Vec::new();
        match self.send(applied, "trainingworkloads").await {
            Ok(_) => {}
            Err(Problem::NotAllowed { message }) => {
                unchecked.push(format!(
                    "the API server did not validate the manifest: {message}"
                ));
            }
            Err(other) => return Err(other),
        }
        let pods: Api<Pod> = self.scoped(namespace);
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        for group in &workload.spec.groups {
            let pod = pod_of(group, workload.spec.priority_class_name.as_deref());
            let refused = |message: String| format!("pods of group {}: {message}", group.name);
            match self.send(pods.create(&params, &pod), "pods").await {
                Ok(_) => {}
                Err(Problem::NotAllowed { message }) => unchecked.push(refused(message)),
                Err(Problem::Refused(message)) => return Err(Problem::Refused(refused(message))),
                Err(other) => return Err(other),
            }
        }
        Ok(unchecked)
    }
}

/// A pod from a group's template. Labels, gates and environment that the manager adds are absent.
fn pod_of(group: &Group, class: Option<&str>) -> Pod {
    let template = &group.template.0;
    let mut pod = Pod {
        metadata: template.metadata.clone().unwrap_or_default(),
        spec: template.spec.clone(),
        status: None,
    };
    pod.metadata.generate_name = Some(format!("{}-", group.name));
    if let Some(spec) = &mut pod.spec {
        spec.priority_class_name = class.map(str::to_owned);
    }
    pod
}
