//! Container images without a docker daemon: one static program in an image of its own, as an OCI
//! layout and as the archive of it that `ctr images import`, `podman load` and `kind load
//! image-archive` take.
//!
//! The same programs give the same digests: one layer, sorted, without times, owners or the
//! machine's names.

mod build;
mod layer;
mod notices;
mod oci;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use self::build::{Target, build};
pub use self::layer::{Entry, Layer};
pub use self::notices::Dependencies;
pub use self::oci::{Image, Written};

/// User and group of what needs no root.
const NONROOT: &str = "65532:65532";

/// An image of the product.
struct Product {
    /// Name of program, package and image.
    name: &'static str,
    user: &'static str,
}

/// The images that are built. Another program is one more line.
const PRODUCTS: &[Product] = &[
    Product {
        name: "lockstep-manager",
        user: NONROOT,
    },
    // The runtime's socket belongs to root; the DaemonSet drops every capability.
    Product {
        name: "lockstep-agent",
        user: "0:0",
    },
    // The supervisor; an init container of training pods copies it out of its image.
    Product {
        name: "lockstep-run",
        user: NONROOT,
    },
    Product {
        name: "lockstep-trainer",
        user: NONROOT,
    },
];

/// Names of the images that are built.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRODUCTS.iter().map(|p| p.name)
}

/// What was built.
pub struct Built {
    /// Name of the image.
    pub name: &'static str,
    /// Size of the program.
    pub program: u64,
    /// Digest and size.
    pub written: Written,
    /// Folder of the OCI layout.
    pub layout: PathBuf,
}

/// Builds the programs for the target and writes an image of each below `out`, named
/// `<prefix><name>:<tag>`.
pub fn images(
    root: &Path,
    target: Target,
    out: &Path,
    prefix: &str,
    tag: &str,
) -> Result<Vec<Built>> {
    let names: Vec<&str> = names().collect();
    let programs = build(root, target, &names)?;
    let dependencies = Dependencies::of(root, target)?;
    let licence = fs::read(root.join("LICENSE")).context("the licence")?;
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let mut built = Vec::new();
    for product in PRODUCTS {
        let program = programs.join(product.name);
        let content = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        let size = content.len() as u64;
        let path = format!("usr/bin/{}", product.name);
        let image = Image {
            reference: format!("{prefix}{}:{tag}", product.name),
            architecture: target.architecture().into(),
            entrypoint: vec![format!("/{path}")],
            user: product.user.into(),
            version: tag.into(),
            layer: Layer::new(vec![
                Entry::program(&path, content),
                Entry::text("licenses/LICENSE", licence.clone()),
                Entry::text(
                    "licenses/NOTICES",
                    dependencies.notices(product.name)?.into(),
                ),
            ])?,
        };
        let layout = out.join(product.name);
        let written = image.write(&layout, &out.join(format!("{}.tar", product.name)))?;
        built.push(Built {
            name: product.name,
            program: size,
            written,
            layout,
        });
    }
    Ok(built)
}
