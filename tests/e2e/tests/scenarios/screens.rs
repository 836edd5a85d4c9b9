//! Columns that kubectl shows for workloads in every phase. Statuses come from stories
//! (`lockstep_sim::phases`).

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use lockstep_api::TrainingWorkload;
use lockstep_cluster::time_of_day;
use lockstep_e2e::cluster;
use lockstep_sim::phases::{PHASES, in_phase};
use serde_json::json;

use crate::console::{blocks, commands, prints};

const NAMESPACE: &str = "screens";
const PAGE: &str = "docs/glossary.md";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_a_workload_of_every_phase_as_the_page_has_it() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("writing statuses") {
        return Ok(());
    }
    cluster.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let api: Api<TrainingWorkload> = Api::namespaced(cluster.client().await?, NAMESPACE);
    for phase in PHASES {
        // A story has a separate runtime.
        let told = tokio::task::spawn_blocking(move || in_phase(phase).workload());
        let mut told = told.await?.context("a workload")?;
        // With the story's clock, the age of a wait would be arbitrary.
        if let Some(status) = &mut told.status {
            let waits = &mut status.accounting.waiting_since;
            *waits = waits.map(|_| time_of_day());
        }
        let mut workload = TrainingWorkload::new(&format!("{phase:?}").to_lowercase(), told.spec);
        // The manager ignores this workload.
        workload.spec.managed_by = "example.com/nobody".into();
        let made = api.create(&PostParams::default(), &workload).await?;
        let status = Patch::Merge(json!({"status": told.status}));
        api.patch_status(&made.name_any(), &PatchParams::default(), &status)
            .await?;
    }
    let mut shown = 0;
    for block in blocks(PAGE, "console")? {
        for (command, expected) in commands(&block)? {
            let mut args: Vec<&str> = command.split(' ').collect();
            args.extend(["-n", NAMESPACE]);
            let printed = cluster.kubectl(&args).await?;
            ensure!(
                prints(&expected, &printed),
                "{PAGE} has something else than\n$ kubectl {command}\n{printed}"
            );
            shown += 1;
        }
    }
    ensure!(shown == 2, "{shown} screens");
    Ok(())
}
