//! OCI image layouts (image-spec 1.1): blobs by digest, an index that names one manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType};

use super::labels::{CREATED, Labels};
use super::layer::{Layer, append};

/// An image of one layer.
#[derive(Clone, Debug)]
pub struct Image {
    /// Full name with tag, such as `registry.example/lockstep-agent:v0.1.0`.
    pub reference: String,
    /// OCI's name of the processor.
    pub architecture: String,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// User and group, as numbers: the kubelet checks `runAsNonRoot` only on those.
    pub user: String,
    /// Tag alone: how the layout's index calls it.
    pub tag: String,
    /// What it says of itself.
    pub labels: Labels,
    /// The file system.
    pub layer: Layer,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Digest of the manifest: what pulls and deployments name.
    pub digest: String,
    /// Bytes that a registry holds for it.
    pub size: u64,
}

impl Image {
    /// Writes the layout into a folder, which is replaced, and the same as one archive.
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
        fs::write(archive, tar(&files)?).with_context(|| format!("write {}", archive.display()))?;
        Ok(written)
    }

    /// The layout as one archive.
    pub fn archive(&self) -> Result<Vec<u8>> {
        tar(&self.files()?.0)
    }

    /// Paths and contents of the layout.
    fn files(&self) -> Result<(BTreeMap<String, Vec<u8>>, Written)> {
        let layer = self.layer.compressed()?;
        let config = serde_json::to_vec(&self.config())?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
            "annotations": self.labels,
        }))?;
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        entry["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.tag,
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        let size = (layer.len() + config.len() + manifest.len()) as u64;
        let written = Written {
            digest: digest(&manifest),
            size,
        };
        let mut files = BTreeMap::from([
            ("index.json".to_owned(), serde_json::to_vec(&index)?),
            (
                "oci-layout".to_owned(),
                serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?,
            ),
        ]);
        for blob in [layer, config, manifest] {
            files.insert(format!("blobs/{}", digest(&blob).replace(':', "/")), blob);
        }
        Ok((files, written))
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "User": self.user,
                "Entrypoint": self.entrypoint,
                "WorkingDir": "/",
                "Labels": self.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(self.layer.tar())]},
        });
        if let Some(time) = self.labels.get(CREATED) {
            config["created"] = json!(time);
        }
        config
    }
}

fn tar(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (path, content) in files {
        append(&mut tar, path, EntryType::Regular, 0o644, content)?;
    }
    tar.into_inner().context("archive")
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(content), "size": content.len()})
}

fn digest(content: &[u8]) -> String {
    let hex: Vec<String> = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{}", hex.concat())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::image::Entry;

    fn image(entries: Vec<Entry>) -> Image {
        Image {
            reference: "registry.example/a:v1".into(),
            architecture: "amd64".into(),
            entrypoint: vec!["/usr/bin/a".into()],
            user: "65532:65532".into(),
            tag: "v1".into(),
            labels: Labels::from([(CREATED.into(), "2026-11-23T07:25:26Z".into())]),
            layer: Layer::new(entries).unwrap(),
        }
    }

    fn entries() -> Vec<Entry> {
        vec![
            Entry::program("usr/bin/a", b"program".to_vec()),
            Entry::link("bin/sh", "../usr/bin/a"),
        ]
    }

    #[test]
    fn the_same_files_give_the_same_digest_whatever_their_order() {
        let mut reversed = entries();
        reversed.reverse();
        assert_eq!(
            image(entries()).archive().unwrap(),
            image(reversed).archive().unwrap()
        );
        let other = vec![Entry::program("usr/bin/a", b"Program".to_vec())];
        assert_ne!(
            image(entries()).files().unwrap().1.digest,
            image(other).files().unwrap().1.digest
        );
    }

    #[test]
    fn every_descriptor_names_a_blob_of_its_digest_and_size() {
        let (files, written) = image(entries()).files().unwrap();
        let json = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let content = files[&format!("blobs/{}", digest.replace(':', "/"))].clone();
            assert_eq!(descriptor["size"], content.len());
            assert_eq!(super::digest(&content), digest);
            content
        };
        let entry = json("index.json")["manifests"][0].clone();
        assert_eq!(entry["digest"], written.digest);
        let manifest: Value = serde_json::from_slice(&blob(&entry)).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        let mut layer = Vec::new();
        let gzip = blob(&manifest["layers"][0]);
        flate2::read::GzDecoder::new(gzip.as_slice())
            .read_to_end(&mut layer)
            .unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], super::digest(&layer));
        assert_eq!(config["created"], "2026-11-23T07:25:26Z");
        let labels = &config["config"]["Labels"];
        assert_eq!(*labels, json!({CREATED: "2026-11-23T07:25:26Z"}));
        assert_eq!(*labels, manifest["annotations"]);
    }

    #[test]
    fn a_layer_has_the_folders_of_its_files_no_times_and_no_owner() {
        let layer = Layer::new(entries()).unwrap();
        let mut archive = tar::Archive::new(layer.tar());
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(
                (
                    header.mtime().unwrap(),
                    header.uid().unwrap(),
                    header.gid().unwrap()
                ),
                (0, 0, 0)
            );
            seen.push((
                entry.path().unwrap().display().to_string(),
                header.mode().unwrap(),
            ));
        }
        let expected = [
            ("bin/", 0o755),
            ("usr/", 0o755),
            ("usr/bin/", 0o755),
            ("bin/sh", 0o777),
            ("usr/bin/a", 0o755),
        ];
        assert_eq!(seen, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }
}
