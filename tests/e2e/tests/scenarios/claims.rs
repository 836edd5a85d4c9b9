//! Volume claims that the test binds.

use anyhow::Result;
use lockstep_cluster::manifests::merge;
use lockstep_cluster::scenario::Scenario;
use serde_json::{Value, json};

/// Creates claim `data`, bound to a volume with this source.
pub(crate) async fn bound_claim(t: &Scenario<'_>, source: Value) -> Result<()> {
    let size = json!({"storage": "1Gi"});
    let mut spec = json!({"capacity": size, "accessModes": ["ReadWriteMany"],
        "storageClassName": "", "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": t.name, "name": "data"}});
    merge(&mut spec, source);
    t.create(json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": t.name}, "spec": spec}))
        .await?;
    t.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": t.name, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                 "resources": {"requests": size}}}))
        .await?;
    Ok(())
}

/// Source of a volume that all nodes can use.
pub(crate) fn host_path() -> Value {
    json!({"hostPath": {"path": "/data"}})
}

/// Creates claim `data`, bound to a volume whose driver cannot attach volumes to `nodes`.
/// kube-scheduler refuses pods with the claim there (plugin NodeVolumeLimits). The manager does not
/// read CSINode objects, and therefore places gangs on these nodes.
pub(crate) async fn unattachable_claim(t: &Scenario<'_>, nodes: &[String]) -> Result<()> {
    let driver = "csi.lockstep.test";
    for node in nodes {
        t.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": node},
            "spec": {"drivers": [{"name": driver, "nodeID": node, "allocatable": {"count": 0}}]}}))
            .await?;
    }
    bound_claim(
        t,
        json!({"csi": {"driver": driver, "volumeHandle": t.name}}),
    )
    .await
}

/// The part of a pod's spec that mounts claim `data`.
pub(crate) fn with_claim() -> Value {
    json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})
}
