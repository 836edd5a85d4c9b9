//! Archives without times and owners, such as the file system of an image.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

#[derive(Clone, Debug)]
pub struct Entry {
    /// Path from the root, without a leading slash.
    path: String,
    kind: EntryType,
    mode: u32,
    /// Content of a file, or target of a link.
    content: Vec<u8>,
}

impl Entry {
    /// A file executable for all users.
    pub fn program(path: &str, bytes: Vec<u8>) -> Self {
        Self::new(path, EntryType::Regular, 0o755, bytes)
    }

    /// A file readable for all users.
    pub fn text(path: &str, bytes: Vec<u8>) -> Self {
        Self::new(path, EntryType::Regular, 0o644, bytes)
    }

    pub fn link(path: &str, to: &str) -> Self {
        Self::new(path, EntryType::Symlink, 0o777, to.into())
    }

    fn new(path: &str, kind: EntryType, mode: u32, content: Vec<u8>) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            mode,
            content,
        }
    }

    fn append(&self, tar: &mut Builder<Vec<u8>>) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(self.kind);
        header.set_mode(self.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let appended = if self.kind.is_symlink() {
            header.set_size(0);
            let to = String::from_utf8_lossy(&self.content);
            tar.append_link(&mut header, &self.path, &*to)
        } else {
            header.set_size(self.content.len() as u64);
            tar.append_data(&mut header, &self.path, self.content.as_slice())
        };
        appended.with_context(|| format!("archive {}", self.path))
    }
}

#[derive(Clone, Debug)]
pub struct Layer {
    tar: Vec<u8>,
    level: Compression,
}

impl Layer {
    /// Archives these entries and their parent folders, sorted, owned by root and without times.
    pub fn new(entries: Vec<Entry>) -> Result<Self> {
        let mut sorted = BTreeMap::new();
        for entry in entries {
            for (at, _) in entry.path.match_indices('/') {
                let folder = &entry.path[..=at];
                let parent = Entry::new(folder, EntryType::Directory, 0o755, Vec::new());
                sorted.insert(folder.to_owned(), parent);
            }
            sorted.insert(entry.path.clone(), entry);
        }
        let mut tar = Builder::new(Vec::new());
        for entry in sorted.values() {
            entry.append(&mut tar)?;
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
