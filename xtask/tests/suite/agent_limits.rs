//! The effects of agents on nodes and cluster are limited to a list: calls of the container runtime
//! linked into the agent, and writes allowed by its roles. A test with a fault covers each rule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const AGENT: &str = "lockstep-agent";
/// Verbs without effects.
const READS: [&str; 3] = ["get", "list", "watch"];
/// Allowed writes of agents: group, resource and verb. The last one is a virtual resource by which
/// the admission policies recognize an agent.
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

/// Names in backquotes in the first column of a table under this heading.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with(heading));
    let rows = section.unwrap().lines();
    let cells = rows.filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

/// Faults of the page of calls, the proto file, or the generated code.
fn mistakes_in_calls(page: &str, proto: &str, code: &str) -> Vec<String> {
    let calls = proto.lines().filter_map(|l| l.trim().strip_prefix("rpc "));
    let calls: BTreeSet<String> = calls
        .filter_map(|l| Some(l.split_once('(')?.0.to_owned()))
        .collect();
    let page = listed(page, "What the agent calls");
    let mut out = Vec::new();
    let differ = page.symmetric_difference(&calls);
    out.extend(differ.map(|c| format!("{c} is only on the page, or not there")));
    // The code's only calls are from that file.
    let paths = code.split("\"/runtime.v1.").skip(1);
    let paths = paths.filter_map(|rest| rest.split('"').next()?.split_once('/'));
    let linked: BTreeSet<String> = paths.map(|(_, call)| call.to_owned()).collect();
    let differ = linked.symmetric_difference(&calls);
    out.extend(differ.map(|c| format!("{c} is only in the code, or not there")));
    let changing: Vec<&String> = calls
        .iter()
        .filter(|c| !["Version", "Status"].contains(&c.as_str()))
        .filter(|c| !c.starts_with("List") && !c.starts_with("Get") && !c.ends_with("Status"))
        .collect();
    if changing != ["StopContainer"] {
        out.push(format!("{changing:?} change something"));
    }
    out
}

fn calls() -> [String; 3] {
    [
        "docs/images.md",
        "operator/agent/proto/api.proto",
        "operator/agent/src/cri/generated/runtime.v1.rs",
    ]
    .map(read)
}

#[test]
fn the_page_lists_the_calls_of_the_container_runtime_that_are_linked_into_the_agent() {
    let [page, proto, code] = calls();
    let found = mistakes_in_calls(&page, &proto, &code);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_call_that_is_only_on_the_page_in_the_proto_file_or_in_the_code_is_noticed() {
    let [page, proto, code] = calls();
    let row = "\n| `StopContainer`";
    assert!(page.contains(row), "{page}");
    let on_page = page.replace(row, &format!("\n| `ExecSync` | x |{row}"));
    let found = mistakes_in_calls(&on_page, &proto, &code);
    assert_eq!(found, ["ExecSync is only on the page, or not there"]);
    let linked = format!("{code}\"/runtime.v1.RuntimeService/ExecSync\"");
    let found = mistakes_in_calls(&page, &proto, &linked);
    assert_eq!(found, ["ExecSync is only in the code, or not there"]);
    // The call is listed everywhere, but has effects.
    let proto = format!("{proto}\n  rpc ExecSync(A) returns (B) {{}}\n");
    let found = mistakes_in_calls(&on_page, &proto, &linked);
    assert_eq!(
        found,
        ["[\"ExecSync\", \"StopContainer\"] change something"]
    );
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

/// Every object in the manifests of `config/`.
fn manifests() -> Vec<Value> {
    let mut files = Vec::new();
    yaml_below(&root().join("config"), &mut files);
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in text.split("\n---\n") {
            // Patches and lists of names are skipped.
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

/// Roles bound to the agents, by kind and name.
fn roles_of_agents(manifests: &[Value]) -> BTreeSet<(String, String)> {
    let bindings = manifests
        .iter()
        .filter(|o| o["kind"].as_str().unwrap().ends_with("RoleBinding"));
    let to_agents = bindings.filter(|b| {
        let mut subjects = b["subjects"].as_array().into_iter().flatten();
        // A group of service accounts includes the agents.
        subjects.any(|s| s["name"] == AGENT || s["kind"] == "Group")
    });
    let role = |b: &Value| {
        let text = |field: &str| b["roleRef"][field].as_str().unwrap().to_owned();
        (text("kind"), text("name"))
    };
    to_agents.map(role).collect()
}

/// Rights of agents that the list lacks, and rights on the list that agents lack.
fn mistakes_in_roles(manifests: &[Value]) -> Vec<String> {
    let bound = roles_of_agents(manifests);
    let mut out = Vec::new();
    let mut found = BTreeSet::new();
    let mut writes: BTreeSet<(String, String, String)> = BTreeSet::new();
    for object in manifests {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let role = (text(&object["kind"]), text(&object["metadata"]["name"]));
        if !bound.contains(&role) {
            continue;
        }
        if !object["aggregationRule"].is_null() {
            out.push(format!("others add rules to {}", role.1));
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            if !rule["nonResourceURLs"].is_null() {
                out.push(format!("{} has {}", role.1, rule["nonResourceURLs"]));
            }
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    let changing = strings(&rule["verbs"]).filter(|v| !READS.contains(&v.as_str()));
                    writes.extend(changing.map(|verb| (group.clone(), resource.clone(), verb)));
                }
            }
        }
        found.insert(role);
    }
    if bound.is_empty() || found != bound {
        out.push(format!("{bound:?} are bound, and there are {found:?}"));
    }
    let allowed = WRITES.map(|(g, r, v)| (g.to_owned(), r.to_owned(), v.to_owned()));
    let allowed = BTreeSet::from(allowed);
    let differ = writes.symmetric_difference(&allowed);
    out.extend(differ.map(|(g, r, v)| format!("{v} {r} of {g:?}")));
    out
}

#[test]
fn agents_write_node_agents_and_nothing_else() {
    assert_eq!(mistakes_in_roles(&manifests()), Vec::<String>::new());
}

/// Faults after a change of the agents' role.
fn after(change: fn(&mut Value)) -> Vec<String> {
    let mut manifests = manifests();
    let mut all = manifests.iter_mut();
    let role = all.find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == AGENT);
    change(role.unwrap());
    mistakes_in_roles(&manifests)
}

#[test]
fn a_right_too_many_or_one_too_few_is_noticed() {
    let pods = after(|role| {
        let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]});
        role["rules"].as_array_mut().unwrap().push(pods);
    });
    assert_eq!(pods, ["delete pods of \"\""]);
    let aggregated = after(|role| role["aggregationRule"] = json!({"clusterRoleSelectors": []}));
    assert_eq!(aggregated, ["others add rules to lockstep-agent"]);
    let url = after(|role| {
        let logs = json!({"nonResourceURLs": ["/logs"], "verbs": ["get"]});
        role["rules"].as_array_mut().unwrap().push(logs);
    });
    assert_eq!(url, ["lockstep-agent has [\"/logs\"]"]);
    let none = after(|role| role["rules"] = json!([]));
    assert_eq!(none.len(), WRITES.len(), "{none:?}");
    let gone = after(|role| role["metadata"]["name"] = json!("another"));
    assert!(gone[0].contains("are bound, and there are"), "{gone:?}");
}
