//! The file system of an image, as one layer.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

#[derive(Clone, Debug)]
pub struct Entry {
    /// Path from the root, without a leading slash.
    path: String,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    File { mode: u32, bytes: Vec<u8> },
    Link(String),
}

impl Entry {
    /// A file executable for all users.
    pub fn program(path: &str, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            content: Content::File { mode: 0o755, bytes },
        }
    }

    /// A file readable for all users.
    pub fn text(path: &str, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            content: Content::File { mode: 0o644, bytes },
        }
    }

    pub fn link(path: &str, to: &str) -> Self {
        Self {
            path: path.into(),
            content: Content::Link(to.into()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Layer {
    tar: Vec<u8>,
    level: Compression,
}

impl Layer {
    /// Creates a layer of these entries and their parent folders, owned by root and without times.
    pub fn new(mut entries: Vec<Entry>) -> Result<Self> {
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let mut tar = Builder::new(Vec::new());
        for folder in folders(&entries) {
            append(
                &mut tar,
                &format!("{folder}/"),
                EntryType::Directory,
                0o755,
                &[],
            )?;
        }
        for entry in &entries {
            match &entry.content {
                Content::File { mode, bytes } => {
                    append(&mut tar, &entry.path, EntryType::Regular, *mode, bytes)?;
                }
                Content::Link(to) => {
                    let mut header = header(EntryType::Symlink, 0o777, 0);
                    tar.append_link(&mut header, &entry.path, to)
                        .context("link")?;
                }
            }
        }
        Ok(Self {
            tar: tar.into_inner().context("layer")?,
            level: Compression::best(),
        })
    }

    /// The same layer for a test on this machine: stored without compression.
    #[must_use]
    pub fn uncompressed(self) -> Self {
        let level = Compression::none();
        Self { level, ..self }
    }

    /// The uncompressed archive. Its digest is the layer's entry in `diff_ids`.
    pub fn tar(&self) -> &[u8] {
        &self.tar
    }

    pub fn compressed(&self) -> Result<Vec<u8>> {
        let mut gzip = GzEncoder::new(Vec::new(), self.level);
        gzip.write_all(&self.tar).context("compress")?;
        gzip.finish().context("compress")
    }
}

/// All parent folders, outer ones first.
fn folders(entries: &[Entry]) -> BTreeSet<String> {
    let mut folders = BTreeSet::new();
    for entry in entries {
        for (at, _) in entry.path.match_indices('/') {
            folders.insert(entry.path[..at].to_owned());
        }
    }
    folders
}

pub(super) fn append(
    tar: &mut Builder<Vec<u8>>,
    path: &str,
    kind: EntryType,
    mode: u32,
    bytes: &[u8],
) -> Result<()> {
    let mut header = header(kind, mode, bytes.len() as u64);
    tar.append_data(&mut header, path, bytes)
        .with_context(|| format!("archive {path}"))
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}
