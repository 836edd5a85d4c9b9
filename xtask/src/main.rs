//! `cargo run -p xtask -- generate [--check]` writes the generated files of the repository, or
//! lists stale ones. `image` builds container images. `structure [CHECKOUT]` measures the product's
//! sources.

mod configuration;
mod cri;
mod reference;
mod vocabulary;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use xtask::bundle::{self, Images, PREFIX, TAG};
use xtask::chart::chart;
use xtask::image::{self, Built, Target};
use xtask::metrics::Metrics;
use xtask::plugin::plugin;
use xtask::release;
use xtask::structure::{Measures, cycles, duplicate_types, load, measure};

#[derive(Parser)]
#[command(about = "Generates what is generated, checks that it is fresh, builds images")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write crds/, docs/reference, bundle/, charts/ and the agent's CRI code.
    Generate {
        /// Write nothing; fail if a file is stale.
        #[arg(long)]
        check: bool,
    },
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
        Command::Generate { check } => generate(root, check),
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
                None => eprintln!("without a maintainer: mail goes to {}", bundle::NOBODY),
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

fn generate(root: &Path, check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (path, content) in files(root)? {
        let path = root.join(path);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == content) {
            continue;
        }
        if check {
            stale.push(path.display().to_string());
            continue;
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    if stale.is_empty() {
        return Ok(());
    }
    bail!(
        "stale generated files, run `make generate`: {}",
        stale.join(", ")
    )
}

/// Path from the root and content of every generated file.
fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut out = Vec::new();
    for crd in lockstep_api::crds::all() {
        let name = crd
            .metadata
            .name
            .as_deref()
            .context("a definition has a name")?;
        let yaml = serde_saphyr::to_string(&crd).context("definition as YAML")?;
        out.push((
            Path::new("crds").join(format!("{name}.yaml")),
            format!("# Generated by `make generate`.\n{yaml}"),
        ));
    }
    out.push((
        PathBuf::from("docs/reference/api.md"),
        reference::markdown(&lockstep_api::crds::all()),
    ));
    out.push((
        PathBuf::from("docs/reference/configuration.md"),
        configuration::markdown(root)?,
    ));
    out.push((
        PathBuf::from("docs/reference/convert.md"),
        lockstep_cli::convert::reference::page(),
    ));
    out.extend(vocabulary::files(root)?);
    out.extend(cri::files(root)?);
    out.push(Metrics::read()?.page());
    let images = Images::tagged(PREFIX, TAG);
    let chart = chart(root, &images)?.into_iter();
    out.extend(chart.map(|(path, text)| (Path::new("charts/lockstep").join(path), text)));
    let bundle = bundle::bundle(root, &images)?;
    out.extend(
        bundle::files(&bundle)?
            .into_iter()
            .map(|(path, text)| (Path::new("bundle").join(path), text)),
    );
    Ok(out)
}
