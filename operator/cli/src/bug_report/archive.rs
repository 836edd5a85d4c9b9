use std::collections::BTreeMap;

use anyhow::Result;
use chrono::{DateTime, Utc};
use flate2::{Compression, GzBuilder};
use tar::{Builder, Header};

/// Folder of all files.
const FOLDER: &str = "lockstep-bug-report";

/// Equal files at equal times give equal bytes.
pub fn pack(files: &BTreeMap<String, Vec<u8>>, now: DateTime<Utc>) -> Result<Vec<u8>> {
    let mut tar = Builder::new(GzBuilder::new().write(Vec::new(), Compression::default()));
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(now.timestamp().unsigned_abs());
        tar.append_data(&mut header, format!("{FOLDER}/{path}"), content.as_slice())?;
    }
    Ok(tar.into_inner()?.finish()?)
}
