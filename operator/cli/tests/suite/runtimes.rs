//! What `convert` reads: folders, and runtimes of TrainJobs from the cluster.

use serde_json::{Value, json};

use crate::problems::{ask, run, stderr, stdout};
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

#[test]
fn the_runtime_of_a_trainjob_without_a_namespace_is_read_from_the_given_one() {
    let job = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {runtimeRef: {name: torch, kind: TrainingRuntime}}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, job).unwrap();
    let server = ApiServer::with(&[]);
    let args = ["convert", "-n", "ml", "-f", file.path().to_str().unwrap()];
    ask(&server.address, &args);
    let asked = server.requests().remove(0).path;
    assert!(
        asked.contains("/namespaces/ml/trainingruntimes/torch"),
        "{asked}"
    );
}

#[test]
fn a_folder_stands_for_its_manifests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = ["convert", "-o", "json", "-f", path];
    let said = stderr(&run(&args));
    assert!(
        said.contains("no file that ends in .json, .yaml or .yml"),
        "{said}"
    );
    let job = |name: &str| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["c"]}]}}}})
    };
    for file in ["c.json", "a.yaml", "b.yml"] {
        std::fs::write(folder.path().join(file), job(&file[..1]).to_string()).unwrap();
    }
    std::fs::write(folder.path().join("README.md"), "[").unwrap();
    let list: Value = serde_json::from_str(&stdout(&run(&args))).unwrap();
    let items = list["items"].as_array().unwrap();
    let names: Vec<&Value> = items.iter().map(|o| &o["metadata"]["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    std::fs::write(folder.path().join("d.yaml"), "no manifest").unwrap();
    let said = stderr(&run(&args));
    assert!(
        said.contains("d.yaml: not an object of Kubernetes"),
        "{said}"
    );
}

#[test]
fn a_url_is_refused_with_the_way_to_read_it() {
    let said = stderr(&run(&["convert", "-f", "https://a.example/job.yaml"]));
    assert!(
        said.contains("curl -sSfL 'https://a.example/job.yaml' | kubectl lockstep"),
        "{said}"
    );
}
