//! Images from `make image`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use xtask::image::blob_path;

/// An image of the product.
#[derive(Clone, Debug)]
pub struct Built {
    /// Path of its archive.
    pub archive: PathBuf,
    /// Name with the tag.
    pub name: String,
    /// Entrypoint.
    pub entrypoint: Vec<String>,
}

/// The image of a program of the product.
pub fn built(program: &str) -> Result<Built> {
    let exe = std::env::current_exe().context("path of this program")?;
    let archive = format!("{program}.tar");
    let folders = exe.ancestors().map(|folder| folder.join("images"));
    let folder = folders
        .into_iter()
        .find(|f| f.join(&archive).is_file())
        .with_context(|| format!("no image of {program}: run `make image`"))?;
    let layout = folder.join(program);
    let read = |path: PathBuf| anyhow::Ok(serde_json::from_slice(&std::fs::read(path)?)?);
    let blob = |about: &Value| {
        let digest = about["digest"].as_str().context("a digest")?;
        read(layout.join(blob_path(digest)))
    };
    let index: Value = read(layout.join("index.json"))?;
    let about = &index["manifests"][0];
    let name = about["annotations"]["io.containerd.image.name"].as_str();
    // Images for other processors differ only in the program.
    let manifest = blob(&blob(about)?["manifests"][0])?;
    let config = blob(&manifest["config"])?;
    Ok(Built {
        archive: folder.join(archive),
        name: name.context("a name")?.to_owned(),
        entrypoint: serde_json::from_value(config["config"]["Entrypoint"].clone())?,
    })
}
