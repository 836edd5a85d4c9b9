//! Runtimes of TrainJobs, which `convert` reads from the cluster.

use serde_json::{Value, json};

use crate::problems::{ask, stderr, stdout};
use crate::server::ApiServer;

#[test]
fn the_runtime_of_a_trainjob_is_read_from_the_cluster() {
    let job = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {runtimeRef: {name: torch}, trainer: {command: [train], numNodes: 3}}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, job).unwrap();
    let runtime = json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"}, "spec": {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [
            {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node", "image": "i"}]}}}}}]}}}});
    let path = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes";
    let args = ["convert", "-o", "json", "-f", file.path().to_str().unwrap()];
    let server = ApiServer::with(&[(path, vec![runtime])]);
    let object: Value = serde_json::from_str(&stdout(&ask(&server.address, &args))).unwrap();
    assert_eq!(object["spec"]["groups"][0]["size"], 3);
    let server = ApiServer::with(&[(path, vec![])]);
    let out = ask(&server.address, &args);
    let said = stderr(&out);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        said.contains("ClusterTrainingRuntime torch is not in the input. Add it: kubectl get"),
        "{said}"
    );
    assert!(
        said.contains("Not read from the cluster: it has no ClusterTrainingRuntime torch"),
        "{said}"
    );
}
