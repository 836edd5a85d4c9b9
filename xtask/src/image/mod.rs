//! Container images without a docker daemon: one static program in an image of its own, as an OCI
//! layout and as the archive of it that `ctr images import`, `podman load` and `kind load
//! image-archive` take.
//!
//! The same commit gives the same digests: one layer, sorted, without times, owners or the
//! machine's names. The same program gives the same layer, whatever the commit.

mod build;
mod labels;
mod layer;
mod notices;
mod oci;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use self::build::{Target, build};
pub use self::labels::{Commit, Labels, labels};
pub use self::layer::{Entry, Layer};
pub use self::notices::Dependencies;
pub use self::oci::{Image, Written};

/// User and group of what needs no root.
const NONROOT: &str = "65532:65532";

/// No image is as large as this, unpacked: 30 MB.
const LIMIT: u64 = 30_000_000;

/// An image of the product.
struct Product {
    /// Name of program, package and image.
    name: &'static str,
    /// One sentence for who finds the image in a registry.
    description: &'static str,
    user: &'static str,
}

/// The images that are built. Another program is one more line.
const PRODUCTS: &[Product] = &[
    Product {
        name: "lockstep-manager",
        description: "Lockstep's manager: places, restarts and preempts gangs of training pods",
        user: NONROOT,
    },
    // The runtime's socket belongs to root; the DaemonSet drops every capability.
    Product {
        name: "lockstep-agent",
        description: "Lockstep's node agent: has the members on its node restart in place",
        user: "0:0",
    },
    // The supervisor; an init container of training pods copies it out of its image.
    Product {
        name: "lockstep-run",
        description: "Lockstep's supervisor: restarts a training process inside its container",
        user: NONROOT,
    },
    Product {
        name: "lockstep-trainer",
        description: "A small distributed training job to try Lockstep with, without accelerators",
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
    let commit = Commit::of(root);
    let licence = fs::read(root.join("LICENSE")).context("the licence")?;
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let mut built = Vec::new();
    for product in PRODUCTS {
        let program = programs.join(product.name);
        let content = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        let size = content.len() as u64;
        let path = format!("usr/bin/{}", product.name);
        let layer = Layer::new(vec![
            Entry::program(&path, content),
            Entry::text("licenses/LICENSE", licence.clone()),
            Entry::text(
                "licenses/NOTICES",
                dependencies.notices(product.name)?.into(),
            ),
        ])?;
        within_limit(product.name, layer.tar().len() as u64)?;
        let image = Image {
            reference: format!("{prefix}{}:{tag}", product.name),
            architecture: target.architecture().into(),
            entrypoint: vec![format!("/{path}")],
            user: product.user.into(),
            tag: tag.into(),
            labels: labels(product.name, product.description, tag, &commit),
            layer,
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

fn within_limit(name: &str, unpacked: u64) -> Result<()> {
    ensure!(
        unpacked < LIMIT,
        "the image of {name} has {unpacked} bytes unpacked, and less than {LIMIT} are allowed"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_30_mb_is_refused_with_its_name_and_size() {
        assert!(within_limit("a", 29_999_999).is_ok());
        let refused = within_limit("a", 30_000_000).unwrap_err().to_string();
        assert!(refused.contains("of a has 30000000 bytes"), "{refused}");
    }
}
