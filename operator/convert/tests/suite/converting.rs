//! Conversion of jobs of other projects. `UPDATE_GOLDEN=1` writes the expected output again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path as FilePath, PathBuf};

use lockstep_api::TrainingWorkload;
use lockstep_convert::{
    Document, Entry, ORIGINS, Origin, Path, PathStep, convert, find_entry, find_origin, objects,
    yaml,
};
use serde_json::Value;

fn folder() -> PathBuf {
    FilePath::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples")
}

/// Inputs, or expected outputs, of all examples.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for origin in std::fs::read_dir(folder()).unwrap() {
        for file in std::fs::read_dir(origin.unwrap().path()).unwrap() {
            found.push(file.unwrap().path());
        }
    }
    let golden = |path: &PathBuf| path.to_string_lossy().ends_with(".out.yaml");
    found.retain(|path| golden(path) == (ending == ".out.yaml"));
    found.sort();
    found
}

fn read(path: &FilePath) -> Vec<Value> {
    objects(yaml::read(&std::fs::read_to_string(path).unwrap()).unwrap()).unwrap()
}

pub fn converted(text: &str) -> Result<Vec<Document>, String> {
    let documents = yaml::read(text).map_err(|e| format!("{e:#}"))?;
    let objects = objects(documents).map_err(|e| format!("{e:#}"))?;
    convert(&objects).map_err(|e| format!("{e:#}"))
}

pub fn refusal(text: &str) -> String {
    converted(text).unwrap_err()
}

#[test]
fn each_example_is_converted_as_expected() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let inputs = files(".yaml");
    for input in &inputs {
        let text = std::fs::read_to_string(input).unwrap();
        let documents = converted(&text)
            .map_err(|e| format!("{}: {e}", input.display()))
            .unwrap();
        let written = yaml::write(&documents).unwrap();
        let objects: Vec<Value> = documents.into_iter().map(|d| d.object).collect();
        assert_eq!(
            yaml::read(&written).unwrap(),
            objects,
            "{}",
            input.display()
        );
        let golden = input.with_extension("out.yaml");
        if update {
            std::fs::write(&golden, &written).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(written, expected, "{}", golden.display());
    }
    let mut examples: BTreeMap<_, usize> = BTreeMap::new();
    for input in &inputs {
        *examples.entry(input.parent()).or_default() += 1;
    }
    assert!(examples.values().all(|n| *n >= 10), "{examples:?}");
}

fn has_long_line(value: &Value) -> bool {
    match value {
        Value::String(text) => text.lines().any(|line| line.len() > 80),
        Value::Array(items) => items.iter().any(has_long_line),
        Value::Object(fields) => fields.values().any(has_long_line),
        _ => false,
    }
}

#[test]
fn each_kind_has_five_examples_with_long_lines() {
    let mut seen: BTreeMap<_, usize> = BTreeMap::new();
    for input in files(".yaml") {
        let jobs = read(&input);
        let long = jobs
            .iter()
            .filter(|o| find_origin(o).unwrap().is_some() && has_long_line(o));
        *seen
            .entry(input.parent().map(FilePath::to_path_buf))
            .or_default() += long.count();
    }
    assert!(
        seen.len() == 8 && seen.values().all(|n| *n >= 5),
        "{seen:?}"
    );
}

/// Paths of all leaves of a value.
fn leaves(value: &Value, path: &Path, out: &mut Vec<Path>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                leaves(value, &path.then(PathStep::Key(key.clone())), out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (n, value) in items.iter().enumerate() {
                leaves(value, &path.then(PathStep::Index(n)), out);
            }
        }
        _ => out.push(path.clone()),
    }
}

#[test]
fn every_expected_workload_has_known_fields_only() {
    for golden in files(".out.yaml") {
        let workloads = read(&golden);
        for written in workloads.iter().filter(|w| w["kind"] == "TrainingWorkload") {
            let workload: TrainingWorkload = serde_json::from_value(written.clone()).unwrap();
            // A field that the type does not have is absent from what it writes.
            let known = serde_json::to_value(&workload).unwrap();
            let mut paths = Vec::new();
            leaves(written, &Path::default(), &mut paths);
            for path in paths {
                assert!(has(&known, &path), "{}: {path}", golden.display());
            }
        }
    }
}

fn has(value: &Value, path: &Path) -> bool {
    let pointer = path.pointer();
    // Empty objects and lists may be absent.
    value.pointer(&pointer).is_some() || pointer.ends_with("/emptyDir")
}

#[test]
fn every_field_of_the_examples_is_in_the_table_of_its_kind() {
    let mut kinds = BTreeSet::new();
    for input in files(".yaml") {
        if input.ends_with("unknown-field.yaml") {
            continue;
        }
        for object in read(&input) {
            let Some(origin) = find_origin(&object).unwrap() else {
                continue;
            };
            kinds.insert((origin.kind, origin.versions));
            let mut paths = Vec::new();
            leaves(&object, &Path::default(), &mut paths);
            for path in paths {
                // An empty object says nothing below its path.
                let inner = matches!(find_entry(origin.table, &path), Entry::Inner);
                let empty = object.pointer(&path.pointer()) == Some(&serde_json::json!({}));
                assert!(
                    in_table(origin, &path) || inner && empty,
                    "{}: {path}",
                    input.display()
                );
            }
        }
    }
    assert_eq!(kinds.len(), ORIGINS.len(), "{kinds:?}");
}

/// True if the table has the path or one above it.
fn in_table(origin: &Origin, path: &Path) -> bool {
    let mut at = Some(path.clone());
    while let Some(path) = at {
        if matches!(find_entry(origin.table, &path), Entry::Field(_)) {
            return true;
        }
        at = path.parent();
    }
    false
}

#[test]
fn a_kind_that_cannot_be_converted_is_named_with_the_supported_kinds() {
    let said = refusal("apiVersion: kubeflow.org/v1\nkind: XGBoostJob\nmetadata: {name: trees}");
    assert!(
        said.starts_with(
            "XGBoostJob trees: \"XGBoostJob\" of \"kubeflow.org/v1\" is not supported"
        ) && said.contains("PyTorchJob (kubeflow.org/v1), TFJob")
            && said.contains("Job (batch/v1)"),
        "{said}"
    );
    let said = refusal("apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: tune}");
    assert!(
        said.contains("RayJob tune: RayJob of ray.io/v1 cannot be converted: Ray starts"),
        "{said}"
    );
    let said = refusal("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}");
    assert!(
        said.starts_with("no job in the input. Supported kinds: PyTorchJob"),
        "{said}"
    );
}

#[test]
fn an_error_names_the_field_and_its_value() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: ";
    let pods = "template: {spec: {containers: [{name: a, image: b}]}}";
    let torch = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec: {pytorchReplicaSpecs: ";
    let cases = [
        (format!("{job}{{completions: 8, parallelism: 2, {pods}}}"), "Job j: spec.completions: 8 differs from parallelism 2. A gang runs all members at the same time"),
        (format!("{job}{{parallelism: 2, {pods}}}"), "spec.completions: missing. A work queue is no gang"),
        (format!("{job}{{parallelism: two, {pods}}}"), "spec.parallelism: \"two\" is not a whole number"),
        (format!("{job}{{template: {{spec: {{}}}}}}"), "spec.template.spec.containers: missing"),
        (format!("{torch}{{Chief: {{}}}}}}"), "spec.pytorchReplicaSpecs.Chief: unknown role. The roles are Master, Worker"),
        (format!("{torch}{{}}}}"), "spec.pytorchReplicaSpecs: missing"),
        (format!("{torch}{{Worker: {{replicas: 2, {pods}}}}}, runPolicy: all}}"), "spec.runPolicy: \"all\" is neither an object nor a list"),
        (
            format!("{torch}{{Worker: {{{pods}}}}}, runPolicy: {{schedulingPolicy: {{priorityClass: system-node-critical}}}}}}"),
            "the workload would be refused: spec: priorityClassName must name a class for workloads",
        ),
        (format!("{torch}{{Worker: {{replicas: 30000, {pods}}}}}}}"), "the workload would be refused"),
        ("apiVersion: batch/v1\nkind: Job\nmetadata: {}".to_owned(), "Job: metadata.name: missing. A TrainingWorkload needs a name"),
        (format!("{torch}{{Worker: {{replicas: $NODES, {pods}}}}}}}"), "replicas: \"$NODES\" is a variable of a shell; run envsubst on the file first"),
        ("spec: {}".to_owned(), "not an object of Kubernetes: it has no apiVersion or no kind"),
        ("not a manifest".to_owned(), "not an object of Kubernetes: it has no apiVersion or no kind"),
        (
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec: {plugins: {mpi: [--master=m]}, tasks: [{name: w, template: {spec: {containers: [{name: a, image: b}]}}}]}".to_owned(),
            "MPI needs a launcher, and no part of the job or its runtime is named \"m\"",
        ),
        ("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {runtimeRef: {name: torch}}".to_owned(),
            "spec.runtimeRef: ClusterTrainingRuntime torch is not in the input. Add it: kubectl get clustertrainingruntime torch -o yaml"),
    ];
    for (text, expected) in cases {
        let said = refusal(&text);
        assert!(said.contains(expected), "{text}\n{said}");
    }
}

#[test]
fn a_runtime_of_xgboost_or_flux_is_refused_with_the_reason() {
    for (policy, expected) in [
        (
            "xgboost: {}",
            "runtime spec.mlPolicy.xgboost: the processes need the tracker of XGBoost",
        ),
        (
            "flux: {}",
            "runtime spec.mlPolicy.flux: Flux schedules processes itself",
        ),
        (
            "flux: {viewImage: a}",
            "runtime spec.mlPolicy.flux: Flux schedules processes itself",
        ),
    ] {
        let said = refusal(&format!(
            "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {{name: t}}\nspec: {{runtimeRef: {{name: r}}}}\n---\n\
             apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nmetadata: {{name: r}}\nspec: {{mlPolicy: {{{policy}}}}}"
        ));
        assert!(said.contains(expected), "{policy}: {said}");
    }
}

#[test]
fn the_line_of_an_error_in_yaml_is_named() {
    let said = refusal("kind: Job\nspec: [\n");
    assert!(said.contains("line "), "{said}");
}

#[test]
fn each_how_to_page_shows_its_example_and_the_result() {
    let docs = folder().join("../../../../docs/how-to");
    let pages = [
        ("pytorchjob", "from-pytorchjob.md", "equal-roles"),
        ("tfjob", "from-tfjob.md", "workers"),
        ("jaxjob", "from-jaxjob.md", "cpu"),
        ("mpijob", "from-mpijob.md", "openmpi"),
        ("trainjob", "from-trainjob.md", "torch"),
        ("jobset", "from-jobset.md", "torch"),
        ("volcano", "from-volcano-job.md", "pytorch"),
        ("job", "from-indexed-job.md", "indexed"),
    ];
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for (origin, page, example) in pages {
        let path = docs.join(page);
        let input =
            std::fs::read_to_string(folder().join(origin).join(format!("{example}.yaml"))).unwrap();
        let output = yaml::write(&converted(&input).unwrap()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let blocks: Vec<&str> = text.split("```yaml\n").skip(1).collect();
        let shown: Vec<&str> = blocks
            .iter()
            .map(|b| b.split("```").next().unwrap())
            .collect();
        let expected = [input, output];
        if update {
            let mut parts = text.split("```yaml\n");
            let mut new = parts.next().unwrap().to_owned();
            for (part, block) in parts.zip(&expected) {
                let rest = part.split_once("```").unwrap().1;
                new.extend(["```yaml\n", block.as_str(), "```", rest]);
            }
            std::fs::write(&path, new).unwrap();
        } else {
            assert_eq!(shown, expected, "{page}");
        }
    }
}

#[test]
fn every_origin_has_a_how_to_page() {
    let origins = std::fs::read_dir(folder()).unwrap().count();
    let index =
        std::fs::read_to_string(folder().join("../../../../docs/how-to/README.md")).unwrap();
    assert_eq!(index.matches("](from-").count(), origins);
}
