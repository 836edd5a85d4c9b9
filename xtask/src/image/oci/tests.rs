use super::*;

const CREATED_AT: &str = "2026-11-23T07:25:26Z";

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
        labels: Labels::from([(CREATED.into(), CREATED_AT.into())]),
        layers: targets.iter().map(|&t| (t, layer(t))).collect(),
    }
}

const BOTH: [Target; 2] = [Target::Amd64, Target::Arm64];

/// The content of a descriptor, which fits its digest and size.
fn blob<'a>(files: &'a Files, about: &Value) -> &'a [u8] {
    let name = about["digest"].as_str().unwrap();
    let blob = &files[&blob_path(name)];
    assert_eq!(digest(blob), name);
    assert_eq!(about["size"], blob.len());
    blob
}

fn parsed(files: &Files, about: &Value, media_type: &str) -> Value {
    assert_eq!(about["mediaType"], media_type);
    serde_json::from_slice(blob(files, about)).unwrap()
}

/// `tests/images` reads images by other programs, and shows that they refuse spoilt ones.
#[test]
fn index_manifests_and_configurations_name_each_other_platforms_labels_and_time() {
    let (files, written) = image(&BOTH).files().unwrap();
    let labels = json!({CREATED: CREATED_AT});
    let layout: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let about = &layout["manifests"][0];
    assert_eq!(about["digest"], written.digest);
    assert_eq!(
        about["annotations"],
        json!({"io.containerd.image.name": "registry.example/a:v1", "org.opencontainers.image.ref.name": "v1"})
    );
    let index = parsed(&files, about, INDEX);
    assert_eq!(index["annotations"], labels);
    let entries = index["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), BOTH.len());
    for (at, (entry, target)) in entries.iter().zip(BOTH).enumerate() {
        let architecture = target.architecture();
        assert_eq!(
            entry["platform"],
            json!({"architecture": architecture, "os": "linux"})
        );
        assert_eq!(entry["digest"], written.manifests[at].digest);
        let manifest = parsed(&files, entry, MANIFEST);
        assert_eq!(manifest["annotations"], labels);
        let config = parsed(&files, &manifest["config"], CONFIG);
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["config"]["Labels"], labels);
        assert_eq!(config["created"], CREATED_AT);
        let mut layer = Vec::new();
        let gzip = blob(&files, &manifest["layers"][0]);
        let mut gzip = flate2::read::GzDecoder::new(gzip);
        std::io::Read::read_to_end(&mut gzip, &mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&layer)]));
        let parts = [&manifest["config"], &manifest["layers"][0], entry];
        let size: u64 = parts.map(|p| p["size"].as_u64().unwrap()).iter().sum();
        assert_eq!(written.manifests[at].size, size);
    }
    // Three blobs for each platform, the index, and two files of the layout.
    assert_eq!(files.len(), 3 * BOTH.len() + 3);
}

#[test]
fn the_same_program_has_the_same_manifest_in_any_index() {
    let (_, alone) = image(&[Target::Arm64]).files().unwrap();
    let (_, both) = image(&BOTH).files().unwrap();
    assert_eq!(alone.manifests[0], both.manifests[1]);
    assert_ne!(alone.digest, both.digest);
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::program("usr/bin/a", b"program".to_vec()),
        Entry::link("bin/sh", "../usr/bin/a"),
    ]
}

#[test]
fn the_order_of_files_does_not_change_a_layer() {
    let mut reversed = entries();
    reversed.reverse();
    let of = |entries| Layer::new(entries).unwrap().compressed().unwrap();
    assert_eq!(of(entries()), of(reversed));
}

#[test]
fn a_layer_has_the_folders_of_its_files_no_times_and_no_owner() {
    let layer = Layer::new(entries()).unwrap();
    let mut archive = tar::Archive::new(layer.tar());
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        let of = |field: std::io::Result<u64>| field.unwrap();
        let zero = [of(header.mtime()), of(header.uid()), of(header.gid())];
        assert_eq!(zero, [0; 3]);
        found.push((
            entry.path().unwrap().display().to_string(),
            header.mode().unwrap(),
        ));
    }
    let expected = [
        ("bin/", 0o755),
        ("bin/sh", 0o777),
        ("usr/", 0o755),
        ("usr/bin/", 0o755),
        ("usr/bin/a", 0o755),
    ];
    assert_eq!(found, expected.map(|(path, mode)| (path.to_owned(), mode)));
}
