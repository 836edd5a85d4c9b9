//! Snapshot and manifest files.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kube::Resource;
use lockstep_api::TrainingWorkload;
use lockstep_model::SnapshotFile;
use serde_json::Value;

/// Compression level: the library's default.
const LEVEL: i32 = 3;
/// Largest snapshot in bytes, decompressed: ten times the size for 100,000 pods.
const LARGEST: u64 = 1 << 30;
/// Path of standard input or output.
const DASH: &str = "-";

pub fn pack(file: &SnapshotFile) -> Result<Vec<u8>> {
    Ok(zstd::encode_all(file.to_json()?.as_slice(), LEVEL)?)
}

/// Decompresses and parses a snapshot.
pub fn unpack(bytes: &[u8]) -> Result<SnapshotFile> {
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(bytes)?;
    decoder
        .take(LARGEST + 1)
        .read_to_end(&mut json)
        .context("not compressed by zstd")?;
    if json.len() as u64 > LARGEST {
        bail!("larger than {LARGEST} bytes unpacked");
    }
    Ok(SnapshotFile::from_json(&json)?)
}

/// Writes a snapshot; a file is replaced atomically.
pub fn write_snapshot(path: &Path, file: &SnapshotFile) -> Result<()> {
    let bytes = pack(file)?;
    let written = if path.as_os_str() == DASH {
        std::io::stdout().write_all(&bytes)
    } else {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        std::fs::write(&part, &bytes).and_then(|()| std::fs::rename(&part, path))
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub fn read_snapshot(path: &Path) -> Result<SnapshotFile> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    unpack(&bytes).with_context(|| format!("snapshot {}", path.display()))
}

#[derive(Clone, Debug)]
pub struct Manifest {
    pub workload: TrainingWorkload,
    /// As written, including fields that the type lacks.
    pub written: Value,
}

/// The manifests that paths name: files, and the files in folders, as kubectl takes them.
pub fn manifests(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for path in paths {
        if !path.is_dir() {
            out.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<_>>);
        let entries: Vec<DirEntry> =
            entries.with_context(|| format!("cannot read {}", path.display()))?;
        let mut found: Vec<PathBuf> = entries.iter().map(DirEntry::path).collect();
        let is_manifest = |end: &str| ["json", "yaml", "yml"].contains(&end);
        found.retain(|file| {
            file.extension()
                .and_then(OsStr::to_str)
                .is_some_and(is_manifest)
        });
        if found.is_empty() {
            bail!(
                "{}: no file that ends in .json, .yaml or .yml",
                path.display()
            );
        }
        found.sort();
        out.extend(found);
    }
    Ok(out)
}

/// The text of a file, or of standard input.
pub fn read_text(path: &Path) -> Result<String> {
    let url = path.to_str().filter(|path| path.contains("://"));
    if let Some(url) = url {
        bail!("{url}: URLs are not read. Pipe it: curl -sSfL '{url}' | kubectl lockstep ... -f -");
    }
    let text = if path.as_os_str() == DASH {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    text.with_context(|| format!("cannot read {}", path.display()))
}

pub fn read_workload(path: &Path) -> Result<Manifest> {
    let text = read_text(path)?;
    parse_workload(&text).with_context(|| format!("manifest {}", path.display()))
}

/// Parses the only workload of a manifest, without the checks of the API server (CEL rules,
/// limits). The manifest can have objects of other kinds.
pub fn parse_workload(text: &str) -> Result<Manifest> {
    let expected = [
        TrainingWorkload::api_version(&()),
        TrainingWorkload::kind(&()),
    ];
    let text_at = |object: &Value, field: &str| {
        let value = object.get(field).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    if objects.len() > 1 {
        objects.retain(|object| text_at(object, "kind") == expected[1]);
    }
    let count = objects.len();
    let (Some(written), 1) = (objects.pop(), count) else {
        bail!("{count} objects of kind {}, not one", expected[1]);
    };
    for (field, expected) in ["apiVersion", "kind"].into_iter().zip(expected) {
        let value = text_at(&written, field);
        if value != expected {
            bail!("{field}: {value:?} is not {expected}");
        }
    }
    let workload = serde_path_to_error::deserialize(&written)?;
    Ok(Manifest { workload, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: training.lockstep.dev/v1alpha1\nkind: TrainingWorkload\nmetadata: {name: a}\n";

    fn refusal(text: &str) -> String {
        format!("{:#}", parse_workload(text).unwrap_err())
    }

    #[test]
    fn a_manifest_of_another_kind_is_refused_by_name() {
        assert_eq!(
            refusal("apiVersion: batch/v1\nkind: Job"),
            "apiVersion: \"batch/v1\" is not training.lockstep.dev/v1alpha1"
        );
        let job = "apiVersion: training.lockstep.dev/v1alpha1\nkind: Job";
        assert_eq!(refusal(job), "kind: \"Job\" is not TrainingWorkload");
    }

    #[test]
    fn the_only_workload_among_objects_of_other_kinds_is_read() {
        let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nvalue: 1\n";
        let spec = "spec: {groups: [{name: w, replica: 2, template: {spec: {containers: []}}}]}\n";
        let one = format!("{HEAD}{spec}");
        let read = parse_workload(&format!("{class}---\n{one}---\n")).unwrap();
        assert_eq!(read.workload.metadata.name.as_deref(), Some("a"));
        assert_eq!(read.written["spec"]["groups"][0]["replica"], 2);
        assert_eq!(
            refusal(&format!("{one}---\n{one}")),
            "2 objects of kind TrainingWorkload, not one"
        );
        assert_eq!(
            refusal(&format!("{class}---\n{class}")),
            "0 objects of kind TrainingWorkload, not one"
        );
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named_with_its_path() {
        let text = format!(
            "{HEAD}spec: {{groups: [{{name: w, size: many, template: {{spec: {{containers: []}}}}}}]}}"
        );
        assert!(
            refusal(&text).starts_with("spec.groups[0].size: "),
            "{}",
            refusal(&text)
        );
    }

    #[test]
    fn a_file_that_is_no_snapshot_is_refused_as_such() {
        assert_eq!(
            format!("{:#}", unpack(b"{}").unwrap_err())
                .split(':')
                .next(),
            Some("not compressed by zstd")
        );
        let other = zstd::encode_all(br#"{"version":9,"news":1}"#.as_slice(), LEVEL).unwrap();
        assert_eq!(
            unpack(&other).unwrap_err().to_string(),
            "the snapshot has format version 9, this program reads version 3"
        );
    }
}
