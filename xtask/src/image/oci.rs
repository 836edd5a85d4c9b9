//! OCI image layouts (image-spec 1.1): blobs by digest, an index of the layout that names the
//! image, and the image's own index with one manifest per platform.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::build::Target;
use super::labels::{CREATED, Labels};
use super::layer::{Entry, Layer};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image with one layer per platform.
#[derive(Clone, Debug)]
pub struct Image {
    /// Full name with tag, such as `registry.example/lockstep-agent:v0.1.0`.
    pub reference: String,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Numeric user and group: the kubelet checks `runAsNonRoot` only for numbers.
    pub user: String,
    /// Tag, used in the layout's index.
    pub tag: String,
    pub labels: Labels,
    pub layers: BTreeMap<Target, Layer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Digest of the image's index, used in pulls and deployments.
    pub digest: String,
    pub manifests: Vec<Manifest>,
}

/// The image for one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub target: Target,
    /// Digest of the manifest.
    pub digest: String,
    /// Bytes in a registry.
    pub size: u64,
}

/// Paths in a layout, with contents.
type Files = BTreeMap<String, Vec<u8>>;

impl Image {
    /// Writes the layout as a folder, which is replaced, and as an archive.
    pub fn write(&self, folder: &Path, archive: &Path) -> Result<Written> {
        let (files, written) = self.files()?;
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("replace {}", folder.display()))?;
        }
        for (path, content) in &files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().context("a folder")?)?;
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        }
        fs::write(archive, archived(&files)?)
            .with_context(|| format!("write {}", archive.display()))?;
        Ok(written)
    }

    pub fn archive(&self) -> Result<Vec<u8>> {
        archived(&self.files()?.0)
    }

    fn files(&self) -> Result<(Files, Written)> {
        let mut files = Files::new();
        let mut entries = Vec::new();
        let mut manifests = Vec::new();
        for (&target, layer) in &self.layers {
            let (entry, manifest) = self.manifest(target, layer, &mut files)?;
            entries.push(entry);
            manifests.push(manifest);
        }
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": entries,
            "annotations": self.labels,
        }))?;
        let written = Written {
            digest: digest(&index),
            manifests,
        };
        let mut entry = add(&mut files, INDEX, index);
        entry["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.tag,
        });
        let layout = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        let version = json!({"imageLayoutVersion": "1.0.0"});
        for (path, content) in [("index.json", layout), ("oci-layout", version)] {
            files.insert(path.to_owned(), serde_json::to_vec(&content)?);
        }
        Ok((files, written))
    }

    /// Adds the blobs for one platform, and returns its entry in the index.
    fn manifest(
        &self,
        target: Target,
        layer: &Layer,
        files: &mut Files,
    ) -> Result<(Value, Manifest)> {
        let compressed = layer.compressed()?;
        let config = serde_json::to_vec(&self.config(target, layer))?;
        let content = (compressed.len() + config.len()) as u64;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": add(files, CONFIG, config),
            "layers": [add(files, LAYER, compressed)],
            "annotations": self.labels,
        }))?;
        let written = Manifest {
            target,
            digest: digest(&manifest),
            size: content + manifest.len() as u64,
        };
        let mut entry = add(files, MANIFEST, manifest);
        entry["platform"] = json!({"architecture": target.architecture(), "os": "linux"});
        Ok((entry, written))
    }

    fn config(&self, target: Target, layer: &Layer) -> Value {
        let mut config = json!({
            "architecture": target.architecture(),
            "os": "linux",
            "config": {
                "User": self.user,
                "Entrypoint": self.entrypoint,
                "WorkingDir": "/",
                "Labels": self.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(layer.tar())]},
        });
        if let Some(time) = self.labels.get(CREATED) {
            config["created"] = json!(time);
        }
        config
    }
}

/// Adds a blob and returns its descriptor.
fn add(files: &mut Files, media_type: &str, blob: Vec<u8>) -> Value {
    let digest = digest(&blob);
    let about = json!({"mediaType": media_type, "digest": digest, "size": blob.len()});
    files.insert(blob_path(&digest), blob);
    about
}

pub fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn archived(files: &Files) -> Result<Vec<u8>> {
    let entries = files
        .iter()
        .map(|(path, content)| Entry::text(path, content.clone()));
    Ok(Layer::new(entries.collect())?.tar().to_vec())
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

#[cfg(test)]
mod tests;
