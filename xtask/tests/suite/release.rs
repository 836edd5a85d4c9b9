//! The folder of a release from images and plugins that a test has made.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use xtask::openvex::{IgnoredAdvisory, document, ignored_advisories};
use xtask::release::{Parts, release};

const PREFIX: &str = "registry.example/l/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Writes an image layout and its archive, and plugins for two platforms.
fn built(folder: &Path) -> BTreeMap<&'static str, String> {
    let mut digests = BTreeMap::new();
    for (at, program) in ["manager", "agent", "run", "trainer"]
        .into_iter()
        .enumerate()
    {
        let layout = folder.join(format!("images/lockstep-{program}"));
        let hash = format!("0{at}").repeat(32);
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        let index = json!({"manifests": [{"platform": {"architecture": "amd64"}}]});
        fs::write(layout.join("blobs/sha256").join(&hash), index.to_string()).unwrap();
        let digest = format!("sha256:{hash}");
        let named = json!({"manifests": [{"digest": digest}]});
        fs::write(layout.join("index.json"), named.to_string()).unwrap();
        fs::write(layout.with_extension("tar"), program).unwrap();
        digests.insert(program, digest);
    }
    for platform in ["amd64", "arm64"] {
        let plugin = folder.join("plugins").join(platform);
        fs::create_dir_all(&plugin).unwrap();
        for file in ["kubectl-lockstep", "LICENSE", "NOTICES"] {
            fs::write(plugin.join(file), format!("{file} {platform}")).unwrap();
        }
    }
    digests
}

fn released(folder: &Path) -> BTreeMap<&'static str, String> {
    let digests = built(folder);
    let built = Parts {
        images: &folder.join("images"),
        plugins: &folder.join("plugins"),
        prefix: PREFIX,
    };
    release(root(), &built, &folder.join("out")).unwrap();
    digests
}

/// Files of an archive.
fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let mut out = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let path = entry.path().unwrap().display().to_string();
        out.insert(path, text);
    }
    out
}

#[test]
fn kustomize_and_chart_name_images_by_digest() {
    let folder = tempfile::tempdir().unwrap();
    let digests = released(folder.path());
    let out = folder.path().join("out");
    let read = |path: &str| fs::read_to_string(out.join(path)).unwrap();
    for (program, file) in [
        ("manager", "config/overlays/default/kustomization.yaml"),
        ("agent", "config/overlays/full/kustomization.yaml"),
    ] {
        let text = read(file);
        let entry = format!(
            "- name: lockstep-{program}\n  newName: {PREFIX}lockstep-{program}\n  digest: {}\n",
            digests[program]
        );
        assert!(text.contains(&entry) && !text.contains("newTag"), "{text}");
    }
    let run = format!("image: {PREFIX}lockstep-run@{}\n", digests["run"]);
    assert!(read("config/manager/config.yaml").contains(&run));
    let images = read("images.txt");
    assert_eq!(images.lines().count(), 3, "{images}");

    let chart = fs::read(out.join("lockstep-0.1.0.tgz")).unwrap();
    let chart = unpacked(&chart);
    let values: Value = serde_saphyr::from_str(&chart["lockstep/values.yaml"]).unwrap();
    assert_eq!(values["images"]["prefix"], PREFIX);
    for program in ["manager", "agent", "run"] {
        assert_eq!(values["images"]["digests"][program], digests[program]);
    }
    let metadata = &chart["lockstep/Chart.yaml"];
    assert!(metadata.contains(&digests["agent"]), "{metadata}");
    assert_eq!(read("images/lockstep-trainer.tar"), "trainer");
}

#[test]
fn the_krew_manifest_has_the_checksum_of_each_archive() {
    let folder = tempfile::tempdir().unwrap();
    released(folder.path());
    let out = folder.path().join("out");
    let manifest = fs::read_to_string(out.join("lockstep.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&manifest).unwrap();
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 2);
    for platform in platforms {
        let uri = platform["uri"].as_str().unwrap();
        let archive = fs::read(out.join(uri.rsplit_once('/').unwrap().1)).unwrap();
        let sum = format!("{:x}", Sha256::digest(&archive));
        assert_eq!(platform["sha256"], sum);
        let files = unpacked(&archive);
        let arch = platform["selector"]["matchLabels"]["arch"]
            .as_str()
            .unwrap();
        let program = &files[platform["bin"].as_str().unwrap()];
        assert_eq!(*program, format!("kubectl-lockstep {arch}"));
        assert!(files.contains_key("LICENSE"), "krew requires a licence");
    }
}

#[test]
fn two_releases_of_the_same_parts_are_equal() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let files = folders.each_ref().map(|folder| {
        released(folder.path());
        let out = folder.path().join("out");
        ["lockstep-0.1.0.tgz", "kubectl-lockstep_linux_amd64.tar.gz"]
            .map(|file| fs::read(out.join(file)).unwrap())
    });
    assert!(files[0] == files[1]);
}

#[test]
fn a_release_without_plugins_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    built(folder.path());
    let built = Parts {
        images: &folder.path().join("images"),
        plugins: &folder.path().join("none"),
        prefix: PREFIX,
    };
    let refused = release(root(), &built, &folder.path().join("out")).unwrap_err();
    assert!(
        refused.to_string().contains("run `make plugin` first"),
        "{refused:#}"
    );
}

fn advisories(ignore: &str) -> anyhow::Result<Vec<IgnoredAdvisory>> {
    ignored_advisories(&format!("[advisories]\nignore = [{ignore}]\n"))
}

#[test]
fn an_ignored_advisory_is_a_statement_with_its_reason() {
    let reason = "vulnerable_code_not_in_execute_path: no program parses such files";
    let entries = format!(
        r#"{{ id = "RUSTSEC-2026-0001", reason = "{reason}" }}, {{ crate = "old@1.0.0", reason = "yanked" }}"#
    );
    let ignored = advisories(&entries).unwrap();
    let image = "registry.example/l/lockstep-run@sha256:0a";
    let (name, document) = document(image, &ignored, "2026-11-27T00:00:00Z").unwrap();
    assert_eq!(name, "lockstep-run");
    let expected = json!([{
        "vulnerability": {"name": "RUSTSEC-2026-0001"},
        "products": [{"@id": "pkg:oci/lockstep-run@sha256%3A0a?repository_url=registry.example/l/lockstep-run"}],
        "status": "not_affected",
        "justification": "vulnerable_code_not_in_execute_path",
        "status_notes": "no program parses such files",
    }]);
    assert_eq!(document["statements"], expected);
    // The fields that the specification requires of a document.
    for field in ["@context", "@id", "author", "timestamp", "version"] {
        assert!(!document[field].is_null(), "{field}");
    }
}

#[test]
fn an_ignored_advisory_without_a_justification_is_refused() {
    for (entry, expected) in [
        (r#""RUSTSEC-2026-0001""#, "reason \"\" is not"),
        (
            r#"{ id = "RUSTSEC-2026-0001", reason = "unused" }"#,
            "reason \"unused\" is not",
        ),
        (
            r#"{ id = "RUSTSEC-2026-0001", reason = "unused: really" }"#,
            "\"unused\" is none of component_not_present",
        ),
    ] {
        let refused = advisories(entry).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn the_shipped_settings_ignore_no_advisory() {
    let deny = include_str!("../../../deny.toml");
    assert_eq!(ignored_advisories(deny).unwrap(), []);
}
