//! Container images without a docker daemon: one static program per image, as an OCI layout and as
//! an archive for `ctr images import`, `podman load` and `kind load image-archive`.
//!
//! Builds are reproducible: one sorted layer per platform, without times, owners or host names.
//! Equal programs give equal layers for any commit.

mod build;
mod elf;
mod labels;
mod layer;
mod notices;
mod oci;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use self::build::{Target, build};
pub use self::elf::check;
pub use self::labels::{Commit, Labels, labels};
pub use self::layer::{Entry, Layer};
pub use self::notices::Dependencies;
pub use self::oci::{Image, Manifest, Written, blob_path};

/// User and group of programs that do not need root.
const NONROOT: &str = "65532:65532";

/// Upper bound for the uncompressed size of an image: 30 MB.
const LIMIT: u64 = 30_000_000;

struct Product {
    /// Name of program, package and image.
    name: &'static str,
    /// One sentence for a registry.
    description: &'static str,
    user: &'static str,
}

const PRODUCTS: &[Product] = &[
    Product {
        name: "lockstep-manager",
        description: "Lockstep's manager: places, restarts and preempts gangs of training pods",
        user: NONROOT,
    },
    // Root, because the runtime's socket belongs to root. The DaemonSet drops all capabilities.
    Product {
        name: "lockstep-agent",
        description: "Lockstep's node agent: has the members on its node restart in place",
        user: "0:0",
    },
    // An init container of training pods copies the supervisor out of its image.
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

pub fn names() -> impl Iterator<Item = &'static str> {
    PRODUCTS.iter().map(|p| p.name)
}

pub struct Built {
    pub name: &'static str,
    /// Sizes of the program in bytes, in the order of the manifests.
    pub programs: Vec<u64>,
    pub written: Written,
    /// Folder of the OCI layout.
    pub layout: PathBuf,
}

/// Programs for one platform with their dependencies.
struct Programs {
    target: Target,
    folder: PathBuf,
    dependencies: Dependencies,
}

impl Programs {
    /// The layer of one program, and the size of the program in bytes.
    fn layer(&self, name: &str, licence: &[u8]) -> Result<(Layer, u64)> {
        let program = self.folder.join(name);
        let content = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
        check(&content, self.target).with_context(|| format!("{}", program.display()))?;
        let size = content.len() as u64;
        let layer = Layer::new(vec![
            Entry::program(&path(name), content),
            Entry::text("licenses/LICENSE", licence.to_vec()),
            Entry::text("licenses/NOTICES", self.dependencies.notices(name)?.into()),
        ])?;
        within_limit(name, self.target, layer.tar().len() as u64)?;
        Ok((layer, size))
    }
}

/// Path of a program in its image, from the root.
fn path(name: &str) -> String {
    format!("usr/bin/{name}")
}

/// Builds the programs for the targets, and writes one image each below `out`, named
/// `<prefix><name>:<tag>`.
pub fn images(
    root: &Path,
    targets: &[Target],
    out: &Path,
    prefix: &str,
    tag: &str,
) -> Result<Vec<Built>> {
    let names: Vec<&str> = names().collect();
    let mut programs = Vec::new();
    for target in targets.iter().copied().collect::<BTreeSet<_>>() {
        programs.push(Programs {
            target,
            folder: build(root, target, &names)?,
            dependencies: Dependencies::of(root, target)?,
        });
    }
    let commit = Commit::of(root);
    let licence = fs::read(root.join("LICENSE")).context("the licence")?;
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let mut built = Vec::new();
    for product in PRODUCTS {
        let mut sizes = Vec::new();
        let mut layers = BTreeMap::new();
        for programs in &programs {
            let (layer, size) = programs.layer(product.name, &licence)?;
            sizes.push(size);
            layers.insert(programs.target, layer);
        }
        let image = Image {
            reference: format!("{prefix}{}:{tag}", product.name),
            entrypoint: vec![format!("/{}", path(product.name))],
            user: product.user.into(),
            tag: tag.into(),
            labels: labels(product.name, product.description, tag, &commit),
            layers,
        };
        let layout = out.join(product.name);
        let written = image.write(&layout, &out.join(format!("{}.tar", product.name)))?;
        built.push(Built {
            name: product.name,
            programs: sizes,
            written,
            layout,
        });
    }
    Ok(built)
}

fn within_limit(name: &str, target: Target, unpacked: u64) -> Result<()> {
    ensure!(
        unpacked < LIMIT,
        "the image of {name} for {} has {unpacked} bytes unpacked, and less than {LIMIT} are allowed",
        target.architecture()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_30_mb_is_refused_with_its_name_processor_and_size() {
        assert!(within_limit("a", Target::Arm64, 29_999_999).is_ok());
        let refused = within_limit("a", Target::Arm64, 30_000_000).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("of a for arm64 has 30000000 bytes"),
            "{refused}"
        );
    }
}
