//! Objects that the Operator Lifecycle Manager creates from a bundle: service accounts, roles,
//! bindings and deployments of the ClusterServiceVersion, in the namespace of the installation. OLM
//! itself is not available in tests. The mapping from fields to objects follows operator-registry
//! and operator-controller's converter of registry+v1 bundles.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::cluster::{Cluster, repository};

/// Rights of an installation's accounts: field of the install strategy, kind of the role, and
/// whether the role is namespaced.
const RIGHTS: [(&str, &str, bool); 2] = [
    ("permissions", "Role", true),
    ("clusterPermissions", "ClusterRole", false),
];

/// Folder of the bundle in the sources.
pub fn bundle() -> PathBuf {
    repository().join("bundle")
}

/// Installs the bundle of the sources into a namespace.
pub(crate) async fn install(cluster: &Cluster, namespace: &str) -> Result<()> {
    cluster.kubectl(&["create", "namespace", namespace]).await?;
    create_definition_of_csv(cluster).await?;
    let mut definitions = Vec::new();
    let mut others = Vec::new();
    let mut csv = None;
    for path in manifests(&bundle())? {
        let object = read(&path)?;
        match object["kind"].as_str() {
            Some("ClusterServiceVersion") => csv = Some((path, object)),
            Some("CustomResourceDefinition") => definitions.push(path),
            _ => others.push(path),
        }
    }
    for path in definitions {
        let path = path.display().to_string();
        cluster.kubectl(&["create", "-f", &path]).await?;
    }
    let (path, csv) = csv.context("a ClusterServiceVersion")?;
    create_strictly(cluster, namespace, &path).await?;
    for path in others {
        create_strictly(cluster, namespace, &path).await?;
    }
    for object in resolved(&csv, namespace)? {
        create(cluster, object).await?;
    }
    Ok(())
}

/// Objects of an installation of the bundle in this folder into this namespace, without the
/// ClusterServiceVersion itself.
pub fn objects(bundle: &Path, namespace: &str) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for path in manifests(bundle)? {
        let mut object = read(&path)?;
        match object["kind"].as_str() {
            Some("ClusterServiceVersion") => out.extend(resolved(&object, namespace)?),
            Some("CustomResourceDefinition" | "ClusterRole") => out.push(object),
            _ => {
                object["metadata"]["namespace"] = json!(namespace);
                out.push(object);
            }
        }
    }
    Ok(out)
}

/// Deletion of the ClusterServiceVersion by OLM: objects of the install strategy and namespaced
/// objects, whose owner is the ClusterServiceVersion, are removed. Other cluster-wide objects of
/// the bundle stay, definitions by design and roles by omission
/// (operator-framework/operator-lifecycle-manager#2985).
pub async fn uninstall(cluster: &Cluster, namespace: &str) -> Result<()> {
    let mut gone = Vec::new();
    for path in manifests(&bundle())? {
        let object = read(&path)?;
        match object["kind"].as_str() {
            Some("ClusterServiceVersion") => {
                gone.extend(resolved(&object, namespace)?);
                gone.push(object);
            }
            Some("CustomResourceDefinition" | "ClusterRole") => {}
            _ => gone.push(object),
        }
    }
    let file = cluster.folder().join("uninstalled.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": gone});
    fs::write(&file, list.to_string())?;
    let file = file.display().to_string();
    cluster
        .kubectl(&["delete", "-n", namespace, "-f", &file])
        .await?;
    // The DaemonSet is deleted with the Deployment that owns it, and its pods with the DaemonSet.
    // Pods on hollow nodes are created without its controller and name no owner.
    let agents = "app.kubernetes.io/name=lockstep-agent";
    let pods = ["delete", "pods", "-n", namespace, "-l", agents];
    cluster.kubectl(&pods).await.map(drop)
}

/// The definition of ClusterServiceVersions, so that the API server validates ours.
async fn create_definition_of_csv(cluster: &Cluster) -> Result<()> {
    let definition =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("data/olm/clusterserviceversions.crd.yaml");
    let definition = definition.display().to_string();
    cluster.kubectl(&["create", "-f", &definition]).await?;
    cluster
        .established(&["crd/clusterserviceversions.operators.coreos.com"])
        .await
}

fn manifests(bundle: &Path) -> Result<Vec<PathBuf>> {
    let folder = bundle.join("manifests");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

/// Fields that the schema does not contain are errors, not warnings.
async fn create_strictly(cluster: &Cluster, namespace: &str, path: &Path) -> Result<()> {
    let path = path.display().to_string();
    let args = ["create", "--validate=strict", "-n", namespace, "-f", &path];
    cluster.kubectl(&args).await.map(drop)
}

async fn create(cluster: &Cluster, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("a kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let client = cluster.client().await?;
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let created = api.create(&PostParams::default(), &object).await;
    created
        .with_context(|| format!("create {}", types.kind))
        .map(drop)
}

/// Objects of the install strategy.
fn resolved(csv: &Value, namespace: &str) -> Result<Vec<Value>> {
    let name = csv["metadata"]["name"].as_str().context("a name")?;
    let spec = &csv["spec"]["install"]["spec"];
    let mut accounts = Vec::new();
    let mut out = Vec::new();
    for (field, kind, namespaced) in RIGHTS {
        for permission in spec[field].as_array().into_iter().flatten() {
            let account = permission["serviceAccountName"]
                .as_str()
                .context("an account")?;
            accounts.push(account.to_owned());
            let mut metadata = json!({"name": format!("{name}-{account}-{}", kind.to_lowercase())});
            if namespaced {
                metadata["namespace"] = json!(namespace);
            }
            let api = "rbac.authorization.k8s.io/v1";
            out.push(json!({"apiVersion": api, "kind": kind, "metadata": metadata, "rules": permission["rules"]}));
            out.push(json!({
                "apiVersion": api, "kind": format!("{kind}Binding"), "metadata": metadata,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": metadata["name"]},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            }));
        }
    }
    accounts.sort();
    accounts.dedup();
    for account in accounts {
        let metadata = json!({"name": account, "namespace": namespace});
        out.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
    }
    for deployment in spec["deployments"].as_array().into_iter().flatten() {
        let metadata = json!({
            "name": deployment["name"], "namespace": namespace, "labels": deployment["label"],
        });
        out.push(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment["spec"]}));
    }
    Ok(out)
}
