use std::io::Read;

use super::*;
use crate::image::Entry;

/// An image with a different program per platform.
fn image(targets: &[Target]) -> Image {
    let layer = |target: Target| {
        let program = target.architecture().as_bytes().to_vec();
        Layer::new(vec![Entry::program("usr/bin/a", program)]).unwrap()
    };
    Image {
        reference: "registry.example/a:v1".into(),
        entrypoint: vec!["/usr/bin/a".into()],
        user: "65532:65532".into(),
        tag: "v1".into(),
        labels: Labels::from([(CREATED.into(), "2026-11-23T07:25:26Z".into())]),
        layers: targets.iter().map(|&t| (t, layer(t))).collect(),
    }
}

const BOTH: [Target; 2] = [Target::Amd64, Target::Arm64];

/// Faults of a layout, read from its outer index inwards as a registry client does.
fn mistakes(files: &Files) -> Vec<String> {
    let mut reader = Reader {
        files,
        found: Vec::new(),
        seen: vec!["index.json".into(), "oci-layout".into()],
    };
    let layout: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    for image in layout["manifests"].as_array().unwrap() {
        reader.image(image);
    }
    for path in files.keys() {
        if !reader.seen.contains(path) {
            reader.found.push(format!("nothing names {path}"));
        }
    }
    reader.found
}

struct Reader<'a> {
    files: &'a Files,
    found: Vec<String>,
    seen: Vec<String>,
}

impl Reader<'_> {
    fn blob(&mut self, about: &Value, media_type: &str) -> Vec<u8> {
        let name = about["digest"].as_str().unwrap();
        let blob = self
            .files
            .get(&blob_path(name))
            .cloned()
            .unwrap_or_default();
        self.expect(about["mediaType"] == media_type, "media type");
        self.expect(about["size"] == blob.len(), "size");
        self.expect(digest(&blob) == name, "digest");
        self.seen.push(blob_path(name));
        blob
    }

    fn json(&mut self, about: &Value, media_type: &str) -> Value {
        let blob = self.blob(about, media_type);
        serde_json::from_slice(&blob).unwrap_or_default()
    }

    fn image(&mut self, about: &Value) {
        let index = self.json(about, INDEX);
        self.expect(index["mediaType"] == INDEX, "media type");
        let mut platforms = Vec::new();
        for entry in index["manifests"].as_array().into_iter().flatten() {
            self.platform(entry);
            platforms.push(entry["platform"].to_string());
        }
        self.expect(!platforms.is_empty(), "no platform");
        let count = platforms.len();
        platforms.dedup();
        self.expect(platforms.len() == count, "a platform twice");
    }

    fn platform(&mut self, entry: &Value) {
        let manifest = self.json(entry, MANIFEST);
        self.expect(manifest["mediaType"] == MANIFEST, "media type");
        let config = self.json(&manifest["config"], CONFIG);
        for part in ["os", "architecture"] {
            self.expect(config[part] == entry["platform"][part], part);
        }
        let gzip = self.blob(&manifest["layers"][0], LAYER);
        let mut layer = Vec::new();
        let read = flate2::read::GzDecoder::new(gzip.as_slice()).read_to_end(&mut layer);
        let same = read.is_ok() && config["rootfs"]["diff_ids"] == json!([digest(&layer)]);
        self.expect(same, "diff_ids");
    }

    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.found.push(what.into());
        }
    }
}

fn index(files: &Files) -> (Value, Value) {
    let layout: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let about = layout["manifests"][0].clone();
    let blob = &files[&blob_path(about["digest"].as_str().unwrap())];
    (serde_json::from_slice(blob).unwrap(), about)
}

#[test]
fn an_index_names_a_manifest_for_each_processor() {
    let (files, written) = image(&BOTH).files().unwrap();
    assert_eq!(mistakes(&files), Vec::<String>::new());
    let (index, about) = index(&files);
    assert_eq!(about["digest"], written.digest);
    assert_eq!(
        about["annotations"],
        json!({"io.containerd.image.name": "registry.example/a:v1", "org.opencontainers.image.ref.name": "v1"})
    );
    let entries = index["manifests"].as_array().unwrap();
    let platforms: Vec<&Value> = entries.iter().map(|e| &e["platform"]).collect();
    assert_eq!(
        platforms,
        [
            &json!({"architecture": "amd64", "os": "linux"}),
            &json!({"architecture": "arm64", "os": "linux"})
        ]
    );
    let digests: Vec<&Value> = entries.iter().map(|e| &e["digest"]).collect();
    assert_eq!(
        digests,
        [
            &json!(written.manifests[0].digest),
            &json!(written.manifests[1].digest)
        ]
    );
    assert_ne!(digests[0], digests[1]);
}

#[test]
fn the_size_of_a_platform_is_that_of_its_manifest_configuration_and_layer() {
    let (files, written) = image(&[Target::Arm64]).files().unwrap();
    let all: usize = files.values().map(Vec::len).sum();
    let (_, about) = index(&files);
    let outer = files["index.json"].len() + files["oci-layout"].len();
    let own = all - outer - about["size"].as_u64().unwrap() as usize;
    assert_eq!(written.manifests[0].size, own as u64);
}

/// A change of a layout's files and the resulting fault.
type Mistake = (fn(&mut Files), &'static str);

/// Changes the image's index, and updates its digest and size in the descriptor.
fn edit(files: &mut Files, change: impl Fn(&mut Value)) {
    let (mut index, about) = index(files);
    files.remove(&blob_path(about["digest"].as_str().unwrap()));
    change(&mut index);
    let mut entry = add(files, INDEX, index.to_string().into_bytes());
    entry["annotations"] = about["annotations"].clone();
    let layout = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    files.insert("index.json".into(), layout.to_string().into_bytes());
}

#[test]
fn each_mistake_in_an_index_is_found() {
    let seeded: &[Mistake] = &[
        (
            |f| {
                edit(f, |i| {
                    i["manifests"][1]["platform"]["architecture"] = json!("amd64");
                });
            },
            "a platform twice",
        ),
        (
            |f| {
                edit(f, |i| {
                    i["manifests"][0]["platform"]["architecture"] = json!("arm");
                });
            },
            "architecture",
        ),
        (
            |f| edit(f, |i| i["manifests"][0]["mediaType"] = json!(INDEX)),
            "media type",
        ),
        (
            |f| edit(f, |i| i["mediaType"] = json!(MANIFEST)),
            "media type",
        ),
        (
            |f| edit(f, |i| i["manifests"][1] = i["manifests"][0].clone()),
            "nothing names blobs",
        ),
        (|f| edit(f, |i| i["manifests"] = json!([])), "no platform"),
        (
            |f| edit(f, |i| i["manifests"][0]["size"] = json!(1)),
            "size",
        ),
        (
            |f| f.values_mut().for_each(|blob| blob.push(b' ')),
            "digest",
        ),
    ];
    for (change, said) in seeded {
        let (mut files, _) = image(&BOTH).files().unwrap();
        change(&mut files);
        let found = mistakes(&files).join("; ");
        assert!(found.contains(said), "{said:?} is not in {found:?}");
    }
}

#[test]
fn an_image_for_no_processor_is_refused() {
    let refused = image(&[]).files().unwrap_err().to_string();
    assert_eq!(refused, "an image for no processor");
}

#[test]
fn the_same_program_has_the_same_manifest_whatever_else_is_in_the_index() {
    let (_, alone) = image(&[Target::Arm64]).files().unwrap();
    let (_, both) = image(&BOTH).files().unwrap();
    assert_eq!(alone.manifests[0], both.manifests[1]);
    assert_ne!(alone.digest, both.digest);
}

#[test]
fn labels_and_time_are_said_by_configuration_manifest_and_index() {
    let (files, _) = image(&BOTH).files().unwrap();
    let labels = json!({CREATED: "2026-11-23T07:25:26Z"});
    let (index, _) = index(&files);
    assert_eq!(index["annotations"], labels);
    for entry in index["manifests"].as_array().unwrap() {
        let read = |about: &Value| {
            let blob = &files[&blob_path(about["digest"].as_str().unwrap())];
            serde_json::from_slice::<Value>(blob).unwrap()
        };
        let manifest = read(entry);
        let config = read(&manifest["config"]);
        assert_eq!(manifest["annotations"], labels);
        assert_eq!(config["config"]["Labels"], labels);
        assert_eq!(config["created"], "2026-11-23T07:25:26Z");
    }
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::program("usr/bin/a", b"program".to_vec()),
        Entry::link("bin/sh", "../usr/bin/a"),
    ]
}

#[test]
fn the_same_files_give_the_same_digest_whatever_their_order() {
    let of = |entries: Vec<Entry>| {
        let layers = BTreeMap::from([(Target::Amd64, Layer::new(entries).unwrap())]);
        Image {
            layers,
            ..image(&[])
        }
    };
    let mut reversed = entries();
    reversed.reverse();
    assert_eq!(
        of(entries()).archive().unwrap(),
        of(reversed).archive().unwrap()
    );
    let other = vec![Entry::program("usr/bin/a", b"Program".to_vec())];
    assert_ne!(
        of(entries()).files().unwrap().1.digest,
        of(other).files().unwrap().1.digest
    );
}

#[test]
fn a_layer_has_the_folders_of_its_files_no_times_and_no_owner() {
    let layer = Layer::new(entries()).unwrap();
    let mut archive = tar::Archive::new(layer.tar());
    let mut seen = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!(
            (
                header.mtime().unwrap(),
                header.uid().unwrap(),
                header.gid().unwrap()
            ),
            (0, 0, 0)
        );
        seen.push((
            entry.path().unwrap().display().to_string(),
            header.mode().unwrap(),
        ));
    }
    let expected = [
        ("bin/", 0o755),
        ("usr/", 0o755),
        ("usr/bin/", 0o755),
        ("bin/sh", 0o777),
        ("usr/bin/a", 0o755),
    ];
    assert_eq!(seen, expected.map(|(path, mode)| (path.to_owned(), mode)));
}
