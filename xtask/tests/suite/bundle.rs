//! Properties of the generated bundle for OLM beyond upstream's validators, which `tests/bundle`
//! runs.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use xtask::bundle::{Bundle, Images, bundle, files, image, publish_as};
use xtask::image::Commit;
use xtask::read_folder;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

const PREFIX: &str = "ghcr.io/lockstep-dev/";

static SHIPPED: LazyLock<Bundle> =
    LazyLock::new(|| bundle(root(), &Images::tagged(PREFIX, "v0.1.0")).unwrap());

fn shipped() -> Bundle {
    SHIPPED.clone()
}

fn at<'a>(bundle: &'a mut Bundle, path: &str) -> &'a mut Value {
    bundle.csv.pointer_mut(path).unwrap()
}

#[test]
fn a_published_bundle_requires_a_publisher_and_contains_no_other_address() {
    let mut bundle = shipped();
    let mail = "/spec/maintainers/0/email";
    let placeholder = at(&mut bundle, mail).as_str().unwrap().to_owned();
    assert!(placeholder.ends_with(".example"), "{placeholder}");
    publish_as(&mut bundle, "Ada <ada@ml.example>").unwrap();
    assert_eq!(at(&mut bundle, mail), "ada@ml.example");
    assert_eq!(at(&mut bundle, "/spec/maintainers/0/name"), "Ada");
    let said = publish_as(&mut bundle, "ada@ml.example").unwrap_err();
    assert!(said.to_string().contains("NAME <MAIL>"), "{said}");
}

/// OLM refuses other kinds, such as DaemonSet. An upgrade would reset a ConfigMap.
#[test]
fn the_bundle_contains_neither_configuration_nor_kinds_that_olm_refuses() {
    let mut bundle = shipped();
    let kinds = bundle.objects.iter().map(|o| o["kind"].as_str().unwrap());
    let kinds: BTreeSet<&str> = kinds.collect();
    let expected = ["ClusterRole", "PodDisruptionBudget", "Role", "Service"];
    assert_eq!(kinds, BTreeSet::from(expected));
    let pod = at(
        &mut bundle,
        "/spec/install/spec/deployments/0/spec/template/spec",
    );
    assert_eq!(pod["volumes"][0]["configMap"]["optional"], true);
    let args = pod["containers"][0]["args"].to_string();
    assert!(args.contains("lockstep-run:v0.1.0"), "{args}");
}

#[test]
fn the_image_of_the_bundle_has_its_files_and_annotations_for_each_platform() {
    let bundle = shipped();
    let mut images = Images::tagged(PREFIX, "v0.1.0");
    images.architectures.insert("arm64".to_owned());
    let commit = Commit::default();
    let written = [(); 2].map(|()| {
        let folder = tempfile::tempdir().unwrap();
        let image = image(&bundle, &images, PREFIX, &commit).unwrap();
        assert_eq!(image.reference, format!("{PREFIX}lockstep-bundle:v0.1.0"));
        for (key, value) in bundle.annotations.as_object().unwrap() {
            assert_eq!(image.labels[key], *value);
        }
        for layer in image.layers.values() {
            let mut archive = tar::Archive::new(layer.tar());
            let found = archive.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().into_owned(), text)
            });
            let found: BTreeMap<PathBuf, String> = found.filter(|(_, t)| !t.is_empty()).collect();
            assert_eq!(found, files(&bundle).unwrap().into_iter().collect());
        }
        let layout = folder.path().join("lockstep-bundle");
        image.write(&layout, &layout.with_extension("tar")).unwrap()
    });
    assert_eq!(written[0], written[1]);
    assert_eq!(written[0].manifests.len(), 2);
}

/// OLM mirrors only related images, and a disconnected cluster can pull no other image.
#[test]
fn the_related_images_are_those_that_the_deployments_name() {
    let csv = shipped().csv;
    let deployments = csv["spec"]["install"]["spec"]["deployments"].to_string();
    let named = deployments.split(PREFIX).skip(1);
    let named = named.map(|rest| rest.split(['"', '\\']).next().unwrap());
    let related = csv["spec"]["relatedImages"].as_array().unwrap();
    let related = related.iter().map(|i| i["image"].as_str().unwrap());
    let related = related.map(|image| image.strip_prefix(PREFIX).unwrap());
    assert_eq!(named.collect::<BTreeSet<_>>(), related.collect());
}

/// OLM creates only the accounts that have rights.
#[test]
fn every_deployment_has_an_account_with_rights_and_no_right_is_a_wildcard() {
    let csv = shipped().csv;
    let spec = &csv["spec"]["install"]["spec"];
    let rights = format!("{}{}", spec["permissions"], spec["clusterPermissions"]);
    assert!(!rights.contains("\"*\""), "{rights}");
    for deployment in spec["deployments"].as_array().unwrap() {
        let account = &deployment["spec"]["template"]["spec"]["serviceAccountName"];
        let has_rights = rights.contains(&format!("\"serviceAccountName\":{account}"));
        assert!(has_rights, "{account}: {rights}");
    }
}

/// Writes the layout of an image for these platforms, and returns its digest.
fn layout(folder: &Path, program: &str, architectures: &[&str]) -> String {
    let platform = |a: &&str| json!({"platform": {"architecture": a, "os": "linux"}});
    let platforms: Vec<Value> = architectures.iter().map(platform).collect();
    let hash = "0a".repeat(32);
    let layout = folder.join(format!("lockstep-{program}"));
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(
        blobs.join(&hash),
        json!({"manifests": platforms}).to_string(),
    )
    .unwrap();
    let digest = format!("sha256:{hash}");
    let named = json!({"manifests": [{"digest": digest}]});
    std::fs::write(layout.join("index.json"), named.to_string()).unwrap();
    digest
}

#[test]
fn images_are_named_by_digest_where_they_were_built() {
    let folder = tempfile::tempdir().unwrap();
    let digests = ["manager", "agent", "run"].map(|p| layout(folder.path(), p, &["amd64"]));
    let images = Images::by_digest("registry.example/l/", folder.path()).unwrap();
    assert_eq!(
        images.agent,
        format!("registry.example/l/lockstep-agent@{}", digests[1])
    );
    let said = Images::by_digest("", &folder.path().join("none")).unwrap_err();
    assert!(
        said.to_string().contains("run `make image` first"),
        "{said}"
    );
}

#[test]
fn processors_are_those_that_all_images_are_for() {
    let labels = |images: &Images| {
        let mut bundle = bundle(root(), images).unwrap();
        let labels = at(&mut bundle, "/metadata/labels").as_object().unwrap();
        labels.keys().cloned().collect::<Vec<_>>()
    };
    let (amd64, arm64, linux) = (
        "operatorframework.io/arch.amd64",
        "operatorframework.io/arch.arm64",
        "operatorframework.io/os.linux",
    );
    assert_eq!(labels(&Images::tagged("", "v1")), [amd64, linux]);
    let folder = tempfile::tempdir().unwrap();
    for (built, said) in [
        (&["amd64", "arm64"][..], vec![amd64, arm64, linux]),
        (&["arm64"], vec![arm64, linux]),
    ] {
        for program in ["manager", "agent", "run"] {
            layout(folder.path(), program, built);
        }
        assert_eq!(labels(&Images::by_digest("", folder.path()).unwrap()), said);
    }
    layout(folder.path(), "run", &["amd64", "arm64"]);
    let refused = Images::by_digest("", folder.path())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("lockstep-run is for"), "{refused}");
}

#[test]
fn what_is_written_is_read_back_as_the_bundle() {
    let bundle = shipped();
    let files = files(&bundle).unwrap();
    let mut expected = [vec![bundle.csv], bundle.crds, bundle.objects].concat();
    expected.push(json!({"annotations": bundle.annotations}));
    let written = files
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|e| e == "yaml"));
    let read: Vec<Value> = written
        .map(|(path, text)| {
            assert!(
                !text.contains("\n---\n"),
                "{} has two objects",
                path.display()
            );
            serde_saphyr::from_str(text).unwrap()
        })
        .collect();
    assert_eq!(read, expected);
}

#[test]
fn nothing_but_generated_files_is_in_the_bundle() {
    let names = |files: Vec<(PathBuf, String)>| files.into_iter().map(|(path, _)| path).collect();
    let expected: BTreeSet<PathBuf> = names(files(&shipped()).unwrap());
    let found: BTreeSet<PathBuf> = names(read_folder(&root().join("bundle")).unwrap());
    assert_eq!(found, expected);
}
