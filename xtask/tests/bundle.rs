//! The bundle for OLM passes the checks of upstream's validators. A test with a fault covers each
//! rule.

// `cfg(test)` always holds here; it lets clippy allow `unwrap` in test helpers.
#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use xtask::bundle::{Bundle, Images, NOBODY, bundle, files, mistakes, publish_as};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

static SHIPPED: LazyLock<Bundle> =
    LazyLock::new(|| bundle(root(), &Images::tagged("ghcr.io/lockstep-dev/", "v0.1.0")).unwrap());

fn shipped() -> Bundle {
    SHIPPED.clone()
}

#[test]
fn the_bundle_has_no_mistake_that_upstreams_validators_know() {
    assert_eq!(mistakes(&shipped()), Vec::<String>::new());
}

fn at<'a>(bundle: &'a mut Bundle, path: &str) -> &'a mut Value {
    bundle.csv.pointer_mut(path).unwrap()
}

/// A field in the description of a kind.
fn described<'a>(bundle: &'a mut Bundle, kind: &str, field: &str) -> &'a mut Value {
    let owned = at(bundle, OWNED).as_array_mut().unwrap();
    &mut owned.iter_mut().find(|o| o["kind"] == kind).unwrap()[field]
}

fn edit_examples(bundle: &mut Bundle, edit: impl Fn(&mut Value)) {
    let annotation = at(bundle, "/metadata/annotations/alm-examples");
    let mut examples: Value = serde_json::from_str(annotation.as_str().unwrap()).unwrap();
    edit(&mut examples);
    *annotation = json!(examples.to_string());
}

const OWNED: &str = "/spec/customresourcedefinitions/owned";
const DEPLOYMENT: &str = "/spec/install/spec/deployments/0";
const CHANNELS: &str = "operators.operatorframework.io.bundle.channels.v1";

/// A change of the bundle and the resulting error.
type Mistake = (fn(&mut Bundle), &'static str);

const LISTING: &[Mistake] = &[
    (
        |b| *at(b, "/kind") = json!("Deployment"),
        "another apiVersion or kind",
    ),
    (
        |b| *at(b, "/metadata/name") = json!("lockstep-0.1.0"),
        "is not lockstep.v",
    ),
    (
        |b| *at(b, "/metadata/name") = json!("x".repeat(64)),
        "at most 63 characters",
    ),
    (
        |b| *at(b, "/spec/version") = json!("0.1"),
        "/spec/version \"0.1\" is no semantic version",
    ),
    (
        |b| *at(b, "/spec/minKubeVersion") = json!("1.30"),
        "/spec/minKubeVersion \"1.30\"",
    ),
    (
        |b| *at(b, "/spec/description") = json!(""),
        "/spec/description is empty",
    ),
    (
        |b| *at(b, "/spec/provider") = json!({}),
        "spec.provider has no name",
    ),
    (
        |b| *at(b, "/spec/maintainers") = json!([]),
        "spec.maintainers is empty",
    ),
    (
        |b| *at(b, "/spec/maintainers/0/email") = json!("nobody"),
        "no mail address",
    ),
    (
        |b| *at(b, "/spec/links/0/url") = json!("docs"),
        "spec.links: ",
    ),
    (
        |b| *at(b, "/spec/icon") = json!([]),
        "spec.icon is not one picture",
    ),
    (
        |b| *at(b, "/spec/icon/0/mediatype") = json!("image/webp"),
        "\"image/webp\" is none of",
    ),
    (
        |b| *at(b, "/spec/icon/0/base64data") = json!("<svg>"),
        "is not base 64",
    ),
    (
        |b| *at(b, "/metadata/annotations/capabilities") = json!("Best"),
        "capabilities \"Best\"",
    ),
    (
        |b| *at(b, "/metadata/annotations/categories") = json!("Database, AI"),
        "categories: \"AI\"",
    ),
    (
        |b| b.annotations["operators.operatorframework.io.bundle.mediatype.v1"] = json!("helm"),
        "mediatype.v1 is \"helm\", not \"registry+v1\"",
    ),
    (
        |b| b.annotations[CHANNELS] = json!(""),
        "channels.v1 is \"\"",
    ),
    (
        |b| b.annotations[CHANNELS] = json!("fast"),
        "the default channel",
    ),
    (
        |b| b.annotations[CHANNELS] = json!("candidate-v0,beta"),
        "channel \"beta\" does not begin with",
    ),
    (
        |b| {
            b.dockerfile = b
                .dockerfile
                .replace("package.v1=lockstep", "package.v1=other");
        },
        "bundle.Dockerfile: no label",
    ),
];

const CONTENT: &[Mistake] = &[
    (
        |b| {
            b.objects
                .push(json!({"kind": "DaemonSet", "metadata": {"name": "a"}}));
        },
        "DaemonSet a: a bundle may not hold this kind",
    ),
    (
        |b| {
            b.objects
                .push(json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}}));
        },
        "may not hold this kind",
    ),
    (
        |b| b.objects[0]["metadata"]["namespace"] = json!("ops"),
        "names a namespace",
    ),
    (
        |b| b.objects[0]["data"]["noise"] = json!(noise()),
        "bytes compressed, more than",
    ),
    (|b| drop(b.crds.pop()), "is not in the bundle"),
    (
        |b| at(b, OWNED).as_array_mut().unwrap().truncate(4),
        "is 0 times in the list of owned definitions",
    ),
    (
        |b| *at(b, &format!("{OWNED}/0/version")) = json!("v1"),
        "is not in the bundle",
    ),
    (
        |b| *at(b, &format!("{OWNED}/0/description")) = json!(""),
        "/description is empty",
    ),
    (
        |b| {
            let fields = described(b, "TrainingWorkload", "statusDescriptors");
            fields[0]["description"] = json!("Ledger: one entry per gang.");
        },
        "is of the ledger, which consoles do not explain",
    ),
    (
        |b| *at(b, &format!("{OWNED}/0/resources")) = json!([]),
        "lists no resources",
    ),
    (
        |b| *at(b, "/metadata/annotations/alm-examples") = json!("[{"),
        "alm-examples is no list in JSON",
    ),
    (
        |b| edit_examples(b, |e| e[0]["kind"] = json!("Job")),
        "Job is not owned",
    ),
    (
        |b| edit_examples(b, |e| *e = json!([])),
        "neither an example nor is it internal",
    ),
    (
        |b| edit_examples(b, |e| drop(e[1].as_object_mut().unwrap().remove("spec"))),
        "has no spec",
    ),
    (
        |b| edit_examples(b, |e| e[0]["spec"]["replica"] = json!(1)),
        "spec.replica, which trainingworkloads",
    ),
    (
        |b| edit_examples(b, |e| e[0]["status"]["mood"] = json!(1)),
        "status.mood, which trainingworkloads",
    ),
    (
        |b| *described(b, "TrainingWorkload", "specDescriptors") = json!([]),
        "no descriptor of spec.groups",
    ),
    (
        |b| *described(b, "TrainingWorkload", "statusDescriptors") = json!([]),
        "no descriptor of status.phase",
    ),
];

const INSTALL: &[Mistake] = &[
    (
        |b| drop(at(b, "/spec/installModes").as_array_mut().unwrap().pop()),
        "spec.installModes are",
    ),
    (
        |b| *at(b, "/spec/installModes/0/supported") = json!(true),
        "OwnNamespace is true",
    ),
    (
        |b| *at(b, "/spec/installModes/3/supported") = json!(false),
        "AllNamespaces is false",
    ),
    (
        |b| *at(b, "/spec/install/spec/deployments") = json!([]),
        "no deployment is installed",
    ),
    (
        |b| {
            *at(
                b,
                &format!("{DEPLOYMENT}/spec/template/spec/containers/0/resources"),
            ) = json!({});
        },
        "requests no memory",
    ),
    (
        |b| {
            *at(
                b,
                &format!("{DEPLOYMENT}/spec/template/spec/containers/0/image"),
            ) = json!("x/y:1");
        },
        "\"x/y:1\" is not among",
    ),
    (
        |b| *at(b, "/spec/relatedImages/1/image") = json!("ghcr.io/x/agent:v9"),
        "lockstep-agent:v0.1.0\" is not among",
    ),
    (
        |b| *at(b, "/spec/relatedImages/2/image") = json!("ghcr.io/x/run"),
        "cannot be pulled",
    ),
    (
        |b| *at(b, "/metadata/annotations/containerImage") = json!("a/b:1"),
        "containerImage \"a/b:1\"",
    ),
    (
        |b| {
            *at(
                b,
                &format!("{DEPLOYMENT}/spec/template/spec/serviceAccountName"),
            ) = json!("default");
        },
        "account \"default\" has no rights",
    ),
    (
        |b| {
            b.objects
                .push(json!({"kind": "ServiceAccount", "metadata": {"name": "lockstep-manager"}}));
        },
        "is made by OLM, too",
    ),
    (
        |b| *at(b, "/spec/install/spec/clusterPermissions/0/rules/0/verbs") = json!(["*"]),
        "a right on everything",
    ),
    (
        |b| {
            *at(
                b,
                "/spec/install/spec/clusterPermissions/0/rules/0/resources",
            ) = json!(["customresourcedefinitions"]);
        },
        "a right on definitions",
    ),
];

/// More than a megabyte of incompressible text.
fn noise() -> String {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
    };
    (0..2_000_000).map(|_| next()).collect()
}

#[test]
fn each_rule_finds_the_mistake_that_it_is_shown() {
    for (change, expected) in [LISTING, CONTENT, INSTALL].concat() {
        let mut bundle = shipped();
        change(&mut bundle);
        let found = mistakes(&bundle);
        assert!(
            found.iter().any(|m| m.contains(expected)),
            "{expected}: {found:#?}"
        );
    }
}

#[test]
fn a_published_bundle_requires_a_publisher_and_contains_no_other_address() {
    let mut bundle = shipped();
    let mail = "/spec/maintainers/0/email";
    assert_eq!(at(&mut bundle, mail), NOBODY);
    assert!(NOBODY.ends_with(".example"));
    publish_as(&mut bundle, "Ada <ada@ml.example>").unwrap();
    assert_eq!(at(&mut bundle, mail), "ada@ml.example");
    assert_eq!(at(&mut bundle, "/spec/maintainers/0/name"), "Ada");
    assert_eq!(mistakes(&bundle), Vec::<String>::new());
    let said = publish_as(&mut bundle, "ada@ml.example").unwrap_err();
    assert!(said.to_string().contains("NAME <MAIL>"), "{said}");
}

#[test]
fn what_an_administrator_has_configured_is_no_object_of_the_bundle() {
    let mut bundle = shipped();
    let kinds = bundle.objects.iter().map(|o| o["kind"].as_str().unwrap());
    let kinds: BTreeSet<&str> = kinds.collect();
    assert!(
        !kinds.contains("ConfigMap") && !kinds.contains("Secret"),
        "an upgrade would put it back: {kinds:?}"
    );
    let pod = at(&mut bundle, &format!("{DEPLOYMENT}/spec/template/spec"));
    assert_eq!(pod["volumes"][0]["configMap"]["optional"], true);
    let args = pod["containers"][0]["args"].to_string();
    assert!(args.contains("lockstep-run:v0.1.0"), "{args}");
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
    assert_eq!(
        mistakes(&bundle(root(), &images).unwrap()),
        Vec::<String>::new()
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

fn below(folder: &Path, out: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, out);
        } else {
            out.insert(path);
        }
    }
}

#[test]
fn nothing_but_generated_files_is_in_the_bundle() {
    let folder = root().join("bundle");
    let files = files(&shipped()).unwrap();
    let expected: BTreeSet<PathBuf> = files.iter().map(|(path, _)| folder.join(path)).collect();
    assert_eq!(expected.len(), files.len(), "two files of one name");
    let mut found = BTreeSet::new();
    below(&folder, &mut found);
    assert_eq!(found, expected);
}
