//! `cargo run -p xtask -- generate` writes the generated files of the repository. `image` builds
//! container images. `structure [CHECKOUT]` measures the product's sources.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use xtask::bundle::{self, Images, PREFIX, TAG};
use xtask::generate::generate;
use xtask::image::{self, Built, Target};
use xtask::plugin::plugin;
use xtask::release;
use xtask::site::{self, Site};
use xtask::structure::{Measures, cycles, duplicate_types, load, measure};

#[derive(Parser)]
#[command(about = "Generates what is generated, builds images")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write crds/, docs/reference, bundle/, charts/ and the agent's CRI code.
    Generate,
    /// Print length and density of the product's code, import cycles between its files, and
    /// duplicate public type names.
    Structure {
        /// Root of the checkout to measure. Default: this one.
        checkout: Option<PathBuf>,
    },
    /// Write the OLM bundle with the images built by `image`, by digest, and the bundle's own image
    /// beside it. Prints the name of that image by digest.
    Bundle {
        /// Folder of the image layouts.
        #[arg(long, default_value = "target/images")]
        images: PathBuf,
        /// Folder for the bundle.
        #[arg(long, default_value = "target/bundle")]
        out: PathBuf,
        /// Prefix of the image names.
        #[arg(long, default_value = PREFIX)]
        prefix: String,
        /// Publisher of the bundle.
        #[arg(long, value_name = "NAME <MAIL>")]
        maintainer: Option<String>,
    },
    /// Write the folder of a release from what `image` and `plugin` have built.
    Release {
        /// Folder of the image layouts and archives.
        #[arg(long, default_value = "target/images")]
        images: PathBuf,
        /// Folder of the plugins.
        #[arg(long, default_value = "target/plugin")]
        plugins: PathBuf,
        /// Folder for the release.
        #[arg(long)]
        out: PathBuf,
        /// Prefix of the image names.
        #[arg(long, default_value = PREFIX)]
        prefix: String,
    },
    /// Build static programs and one OCI image each, with an index over the platforms. Prints sizes
    /// and digests.
    Image {
        /// Platforms, such as `amd64,arm64`. Default: this machine's.
        #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Target::here()])]
        arch: Vec<Target>,
        /// Folder for the layouts and archives.
        #[arg(long, default_value = "target/images")]
        out: PathBuf,
        /// Prefix of the image names.
        #[arg(long, default_value = PREFIX)]
        prefix: String,
        /// Tag. Default: the version.
        #[arg(long, default_value = TAG)]
        tag: String,
    },
    /// Build a version of the documentation site and the index of versions, and check its links.
    Docs {
        /// Tag, or `main`.
        #[arg(long, default_value = "main")]
        version: String,
        /// Root of the checkout with the pages. Default: this one.
        #[arg(long)]
        checkout: Option<PathBuf>,
        /// Folder for the versions.
        #[arg(long, default_value = "target/docs")]
        out: PathBuf,
        /// Folder of mdbook and mdbook-mermaid.
        #[arg(long, default_value = "target/docs-tools/bin")]
        tools: PathBuf,
    },
    /// Build `kubectl lockstep` as a static program. Prints its size.
    Plugin {
        /// Platforms, such as `amd64,arm64`. Default: this machine's.
        #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Target::here()])]
        arch: Vec<Target>,
        /// Output folder, with one folder per platform for the program and its licences.
        #[arg(long, default_value = "target/plugin")]
        out: PathBuf,
    },
}

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace root")?;
    match Args::parse().command {
        Command::Generate => generate(root),
        Command::Structure { checkout } => structure(checkout.as_deref().unwrap_or(root)),
        Command::Bundle {
            images,
            out,
            prefix,
            maintainer,
        } => {
            let images = Images::by_digest(&prefix, &root.join(images))?;
            let mut bundle = bundle::bundle(root, &images)?;
            match maintainer {
                Some(maintainer) => bundle::publish_as(&mut bundle, &maintainer)?,
                None => eprintln!("without a maintainer: mail goes to a reserved domain"),
            }
            let out = root.join(out);
            write_bundle(&bundle, &out)?;
            let layout = out.with_file_name(bundle::IMAGE);
            let image = bundle::image(&bundle, &images, &prefix, &image::Commit::of(root))?;
            let written = image.write(&layout, &layout.with_extension("tar"))?;
            println!("{prefix}{}@{}", bundle::IMAGE, written.digest);
            Ok(())
        }
        Command::Release {
            images,
            plugins,
            out,
            prefix,
        } => {
            let built = release::Parts {
                images: &root.join(images),
                plugins: &root.join(plugins),
                prefix: &prefix,
            };
            release::release(root, &built, &root.join(out))
        }
        Command::Image {
            arch,
            out,
            prefix,
            tag,
        } => {
            let built = image::images(root, &arch, &root.join(out), &prefix, &tag)?;
            print_images(&built);
            Ok(())
        }
        Command::Docs {
            version,
            checkout,
            out,
            tools,
        } => site::build(Site {
            root: checkout.as_deref().unwrap_or(root),
            version: &version,
            out: &root.join(out),
            tools: &root.join(tools),
        }),
        Command::Plugin { arch, out } => {
            for target in arch {
                let (program, size) = plugin(root, target, &root.join(&out))?;
                println!("{} {size}", program.display());
            }
            Ok(())
        }
    }
}

fn print_images(built: &[Built]) {
    println!("{:<18} {:>11} {:>11}  digest", "image", "program", "image");
    for b in built {
        println!("{:<42}  {}", b.name, b.written.digest);
        for (program, image) in b.programs.iter().zip(&b.written.manifests) {
            println!(
                "  {:<16} {program:>11} {:>11}  {}",
                image.target.architecture(),
                image.size,
                image.digest
            );
        }
        println!("  {}", b.layout.display());
    }
}

fn structure(root: &Path) -> Result<()> {
    let crates = load(root)?;
    println!(
        "{:<28} {:>6} {:>11} {:>13} {:>5} {:>10} {:>12} {:>13} {:>14} {:>14} {:>6}",
        "crate",
        "lines",
        "tokens/line",
        "comment words",
        "files",
        "< 60 lines",
        "public types",
        ">= 6 params",
        "closures/100 l",
        "named closures",
        "cycles"
    );
    let mut total = Measures::default();
    let mut circles = Vec::new();
    for krate in &crates {
        let measures = measure(krate);
        let found = cycles(krate);
        print_row(&krate.name, &measures, found.len());
        total.add(&measures);
        circles.extend(found);
    }
    print_row("all", &total, circles.len());
    let function = total.longest_function();
    let (lines, file) = &total.longest_file;
    println!(
        "longest function     {} lines, {}",
        function.lines, function.name
    );
    println!("longest file         {lines} lines, {file}");
    for circle in circles {
        println!("import cycle         {}", circle.join(", "));
    }
    for (name, files) in duplicate_types(&crates) {
        let files: Vec<String> = files.into_iter().collect();
        println!("public type twice    {name}: {}", files.join(", "));
    }
    Ok(())
}

fn write_bundle(bundle: &bundle::Bundle, out: &Path) -> Result<()> {
    if out.exists() {
        std::fs::remove_dir_all(out)?;
    }
    for (path, content) in bundle::files(bundle)? {
        let path = out.join(path);
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(&path, content)?;
    }
    Ok(())
}

fn print_row(name: &str, measures: &Measures, cycles: usize) {
    println!(
        "{name:<28} {:>6} {:>11.1} {:>13} {:>5} {:>10} {:>12} {:>13} {:>14.1} {:>14} {cycles:>6}",
        measures.lines,
        measures.tokens_per_line(),
        measures.comment_words,
        measures.files,
        measures.short_files,
        measures.public_types,
        measures.many_parameters(),
        measures.closures_per_100_lines(),
        measures.named_closures,
    );
}
