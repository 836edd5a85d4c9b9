//! What a node's agent can do to its node and its cluster is on a list, and nothing else is: the calls of the
//! container runtime that are linked into it, and the writes that its roles allow.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Service account of the agents.
const AGENT: &str = "lockstep-agent";
/// Verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];
/// Everything that agents may write, as group, resource and verb. The last one is no resource: it is the
/// right by which the admission policies know an agent.
const WRITES: [(&str, &str, &str); 4] = [
    ("training.lockstep.dev", "nodeagents", "create"),
    ("training.lockstep.dev", "nodeagents", "patch"),
    ("training.lockstep.dev", "nodeagents/status", "update"),
    ("admission.lockstep.dev", "nodeagents", "report"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// The second column of the lines of a table of a page: names in backquotes.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with(heading));
    let rows = section.unwrap().lines();
    let cells = rows.filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

#[test]
fn the_page_lists_the_calls_of_the_container_runtime_that_are_linked_into_the_agent() {
    let proto = read("operator/agent/proto/api.proto");
    let calls = proto.lines().filter_map(|l| l.trim().strip_prefix("rpc "));
    let calls: BTreeSet<String> = calls
        .filter_map(|l| Some(l.split_once('(')?.0.to_owned()))
        .collect();
    let page = listed(&read("docs/images.md"), "What the agent calls");
    assert_eq!(page, calls);
    // The code has them from that file alone.
    let code = read("operator/agent/src/cri/generated/runtime.v1.rs");
    let paths = code.split("\"/runtime.v1.").skip(1);
    let paths = paths.filter_map(|rest| rest.split('"').next()?.split_once('/'));
    let linked: BTreeSet<String> = paths.map(|(_, call)| call.to_owned()).collect();
    assert_eq!(linked, calls);
    let changing: Vec<&String> = calls
        .iter()
        .filter(|c| !["Version", "Status"].contains(&c.as_str()))
        .filter(|c| !c.starts_with("List") && !c.starts_with("Get") && !c.ends_with("Status"))
        .collect();
    assert_eq!(changing, ["StopContainer"]);
}

fn yaml_below(path: &Path, out: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            yaml_below(&entry.unwrap().path(), out);
        }
    } else if path.extension().is_some_and(|e| e == "yaml") {
        out.push(path.to_owned());
    }
}

/// Every object of every manifest in `config/`.
fn manifests() -> Vec<Value> {
    let mut files = Vec::new();
    yaml_below(&root().join("config"), &mut files);
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in text.split("\n---\n") {
            // Patches and lists of names are none.
            let object: Result<Value, _> = serde_saphyr::from_str(document);
            all.extend(object.ok().filter(|o| o["kind"].is_string()));
        }
    }
    all
}

fn strings(list: &Value) -> impl Iterator<Item = String> {
    let items = list.as_array().into_iter().flatten();
    items.map(|s| s.as_str().unwrap().to_owned())
}

/// Roles that are bound to the agents, by kind and name.
fn roles_of_agents(manifests: &[Value]) -> BTreeSet<(String, String)> {
    let bindings = manifests
        .iter()
        .filter(|o| o["kind"].as_str().unwrap().ends_with("RoleBinding"));
    let to_agents = bindings.filter(|b| {
        let mut subjects = b["subjects"].as_array().into_iter().flatten();
        // A group of service accounts has the agents in it.
        subjects.any(|s| s["name"] == AGENT || s["kind"] == "Group")
    });
    let role = |b: &Value| {
        let text = |field: &str| b["roleRef"][field].as_str().unwrap().to_owned();
        (text("kind"), text("name"))
    };
    to_agents.map(role).collect()
}

#[test]
fn agents_write_node_agents_and_nothing_else() {
    let manifests = manifests();
    let bound = roles_of_agents(&manifests);
    let mut found = BTreeSet::new();
    let mut writes: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for object in &manifests {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let role = (text(&object["kind"]), text(&object["metadata"]["name"]));
        if !bound.contains(&role) {
            continue;
        }
        found.insert(role);
        assert!(
            object["aggregationRule"].is_null(),
            "others add rules to it"
        );
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert!(rule["nonResourceURLs"].is_null());
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        if !READS.contains(&verb.as_str()) {
                            let right = (group.clone(), resource.clone(), verb);
                            *writes.entry(right).or_default() += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(!bound.is_empty() && found == bound, "{bound:?}, {found:?}");
    let allowed = WRITES.map(|(g, r, v)| (g.to_owned(), r.to_owned(), v.to_owned()));
    assert_eq!(writes.into_keys().collect::<BTreeSet<_>>(), allowed.into());
}
