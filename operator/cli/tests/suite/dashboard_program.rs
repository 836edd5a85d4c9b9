//! The dashboard as a program, without a browser.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lockstep_cli::file::write_snapshot;
use lockstep_cli::serve::assets::FILES;
use serde_json::{Map, Value, json};

use crate::dashboard_fixture::{NODES, WORKLOADS, lists};
use crate::live_server::{LiveServer, Rights};
use crate::problems::{ask, command};
use crate::support::{GPU, full_cluster, manifest, snapshot};

/// How long a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(40);

#[expect(
    clippy::disallowed_methods,
    reason = "a test of a program waits by the wall clock"
)]
fn wall() -> Instant {
    Instant::now()
}

/// A running dashboard.
struct Dashboard {
    child: Child,
    host: String,
    token: String,
    /// The line that it has printed.
    line: String,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer: status code, headers, body.
struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(
            self.head.contains("content-type: application/json\r\n"),
            "{}",
            self.head
        );
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Dashboard {
    fn start(args: &[&str]) -> Self {
        let mut child = command(&[&["dashboard"], args].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let (_, rest) = line.split_once("http://").unwrap();
        let (host, rest) = rest.split_once("/#t=").unwrap();
        let token = rest.split([' ', '&']).next().unwrap();
        Self {
            host: host.to_owned(),
            token: token.to_owned(),
            line,
            child,
        }
    }

    fn over(server: &LiveServer, args: &[&str]) -> Self {
        Self::start(&[args, &["--server", &server.address]].concat())
    }

    fn send(&self, request: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let text = format!(
            "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn ask(&self, request: &str, headers: &str, body: &str) -> Answer {
        let mut text = String::new();
        self.send(request, headers, body)
            .read_to_string(&mut text)
            .unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Answer {
            code: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: format!("{head}\r\n"),
            body: body.to_owned(),
        }
    }

    fn headers(&self) -> String {
        format!(
            "host: {}\r\nauthorization: Bearer {}\r\n",
            self.host, self.token
        )
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), &self.headers(), "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = format!("{}content-type: application/json\r\n", self.headers());
        self.ask(&format!("POST {path}"), &headers, &body.to_string())
    }

    fn stream(&self, query: &str) -> Events {
        let stream = self.send(&format!("GET /api/stream?{query}"), &self.headers(), "");
        Events {
            lines: BufReader::new(stream),
            documents: json!({}),
        }
    }
}

/// An open stream with the documents as its reader has them.
struct Events {
    lines: BufReader<TcpStream>,
    documents: Value,
}

impl Events {
    /// Kind and data of the next event. Applies patches.
    fn next(&mut self) -> (String, Value) {
        let mut kind = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the stream ended"
            );
            if let Some(text) = line.strip_prefix("event: ") {
                text.trim().clone_into(&mut kind);
            }
            let Some(text) = line.strip_prefix("data: ") else {
                continue;
            };
            let data: Value = serde_json::from_str(text).unwrap();
            let name = data["name"].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "document" => self.documents[&name] = data["value"].clone(),
                "patch" => merge(&mut self.documents[&name], &data["patch"]),
                _ => {}
            }
            return (kind, data);
        }
    }

    /// Reads until the documents are as expected.
    fn until(&mut self, expected: impl Fn(&Value) -> bool) {
        let begin = wall();
        while !expected(&self.documents) {
            assert!(begin.elapsed() < PATIENCE, "{:#?}", self.documents);
            self.next();
        }
    }

    /// The documents of the page.
    fn of_page(mut self, name: &str) -> Value {
        self.until(|documents| documents.get(name).is_some());
        self.documents
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

#[test]
fn each_verb_answers_as_its_command_prints() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    for (verb, words, query) in [
        ("queue", vec![], ""),
        ("top", vec![], ""),
        ("agents", vec![], ""),
        ("nodes", vec![], ""),
        ("doctor", vec![], ""),
        ("status", vec!["llama", "-n", "ml"], "?workload=ml/llama"),
        ("explain", vec!["llama", "-n", "ml"], "?workload=ml/llama"),
    ] {
        let printed = ask(
            &server.address,
            &[&[verb, "-o", "json"], words.as_slice()].concat(),
        );
        let why = String::from_utf8_lossy(&printed.stderr);
        assert!(!printed.stdout.is_empty(), "{verb}: {why}");
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let answer = dashboard.get(&format!("/api/verbs/{verb}{query}"));
        assert_eq!(answer.json(), printed, "{verb}");
    }
}

#[test]
fn an_administrator_sees_the_whole_cluster() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &["--view", "#/queue?w=ml/llama"]);
    assert!(
        dashboard
            .line
            .contains("&view=%23%2Fqueue%3Fw%3Dml%2Fllama  (context"),
        "{}",
        dashboard.line
    );
    assert!(
        dashboard
            .line
            .ends_with("user ana; read-only)  Ctrl-C ends it\n"),
        "{}",
        dashboard.line
    );
    let read = dashboard.stream("view=overview").of_page("overview");
    let frame = &read["frame"];
    assert_eq!(frame["freshness"]["state"], "live");
    assert_eq!(
        (&frame["workloads"], &frame["nodes"]),
        (&json!(8), &json!(40))
    );
    assert_eq!(
        (&frame["user"], &frame["missing"]),
        (&json!("ana"), &json!([]))
    );
    assert_eq!(
        (&read["overview"]["total"], &read["overview"]["tenant"]),
        (&json!(320), &Value::Null)
    );
}

#[test]
fn a_tenant_sees_the_own_namespace_and_which_rights_are_missing() {
    let server = LiveServer::start(lists(), Rights::Tenant);
    let dashboard = Dashboard::over(&server, &["-n", "ml"]);
    let read = dashboard.stream("view=overview").of_page("overview");
    let (frame, overview) = (&read["frame"], &read["overview"]);
    assert_eq!(
        (&frame["namespace"], &frame["workloads"]),
        (&json!("ml"), &json!(4))
    );
    assert_eq!(
        (&frame["nodes"], &overview["total"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(overview["tenant"], json!({"held": 64, "requested": 192}));
    let missing = frame["missing"].as_array().unwrap();
    let nodes = missing.iter().find(|m| m["what"] == "nodes").unwrap();
    assert_eq!(nodes["verb"], "list");
    assert_eq!(
        nodes["command"],
        "kubectl create clusterrolebinding lockstep-dashboard --clusterrole=lockstep-dashboard --user=ana"
    );
    let queue = dashboard.stream("view=queue").of_page("queue");
    assert_eq!(queue["queue"]["onlyNamespace"], "ml");
    assert!(!queue["queue"].to_string().contains("vision/"), "{queue:?}");
    let refusal = dashboard.post("/api/whatif", &json!({"workload": "ml/llama"}));
    assert!(
        refusal.code == 400 && refusal.body.contains("lockstep-dashboard"),
        "{}",
        refusal.body
    );
}

#[test]
fn a_reader_without_rights_is_told_what_to_ask_for() {
    let server = LiveServer::start(lists(), Rights::None);
    let dashboard = Dashboard::over(&server, &["-n", "ml"]);
    let read = dashboard.stream("view=incidents").of_page("incidents");
    assert_eq!(read["incidents"], json!({"rows": {}}));
    let missing = read["frame"]["missing"].as_array().unwrap();
    let workloads = missing
        .iter()
        .find(|m| m["what"] == "trainingworkloads")
        .unwrap();
    assert_eq!(
        workloads["command"],
        "kubectl create rolebinding lockstep-batch-user --clusterrole=lockstep-batch-user --user=ana -n ml"
    );
}

#[test]
fn without_the_right_to_watch_lists_are_read_again() {
    let server = LiveServer::start(lists(), Rights::NoWatch);
    let dashboard = Dashboard::over(&server, &[]);
    let mut events = dashboard.stream("view=incidents");
    events.until(|read| {
        read.get("frame")
            .is_some_and(|f| f["freshness"]["state"] == "polling")
    });
    assert_eq!(events.documents["frame"]["workloads"], 8);
    server.change(WORKLOADS, "llama", |w| w["status"]["history"] = json!([]));
    events.until(|read| read["incidents"]["rows"].as_object().map_or(0, Map::len) == 2);
}

#[test]
fn only_the_page_with_its_token_is_answered() {
    let file = tempfile::tempdir().unwrap();
    let dashboard = Dashboard::start(&["--snapshot", &recorded(&file)]);
    let (host, token) = (&dashboard.host, &dashboard.token);
    let bearer = format!("authorization: Bearer {token}\r\n");
    let own = format!("host: {host}\r\n{bearer}");
    let port = host.rsplit(':').next().unwrap();
    for (headers, code) in [
        (own.clone(), 200),
        (format!("host: localhost:{port}\r\n{bearer}"), 200),
        (format!("{own}origin: http://{host}\r\n"), 200),
        (format!("host: {host}\r\n"), 401),
        (
            format!("host: {host}\r\nauthorization: Bearer {token}0\r\n"),
            401,
        ),
        (format!("host: evil.example:{port}\r\n{bearer}"), 403),
        (format!("{own}origin: http://evil.example\r\n"), 403),
        (format!("{own}origin: null\r\n"), 403),
    ] {
        let answer = dashboard.ask("GET /api/verbs/queue", &headers, "");
        assert_eq!(answer.code, code, "{headers}: {}", answer.body);
        assert!(
            answer.head.contains("cache-control: no-store\r\n"),
            "{}",
            answer.head
        );
    }
    let text = format!("{own}content-type: text/plain\r\n");
    assert_eq!(dashboard.ask("POST /api/whatif", &text, "{}").code, 415);
    assert_eq!(
        dashboard
            .ask("GET /", &format!("host: evil.example:{port}\r\n"), "")
            .code,
        403
    );
    assert_eq!(dashboard.ask("DELETE /api/verbs/queue", &own, "").code, 404);
}

#[test]
fn files_of_the_page_need_no_token_and_allow_no_other_source() {
    let file = tempfile::tempdir().unwrap();
    let dashboard = Dashboard::start(&["--snapshot", &recorded(&file)]);
    let host = format!("host: {}\r\n", dashboard.host);
    for (name, bytes) in FILES {
        let answer = dashboard.ask(&format!("GET /assets/{name}"), &host, "");
        assert_eq!(
            (answer.code, answer.body.as_bytes()),
            (200, *bytes),
            "{name}"
        );
        assert!(
            answer
                .head
                .contains("content-security-policy: default-src 'none'; script-src 'self';")
        );
        assert!(answer.head.contains("x-content-type-options: nosniff\r\n"));
        let tag = answer
            .head
            .lines()
            .find_map(|l| l.strip_prefix("etag: "))
            .unwrap();
        let again = dashboard.ask("GET /", &format!("{host}if-none-match: {tag}\r\n"), "");
        assert_eq!(again.code, if *name == "index.html" { 304 } else { 200 });
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(
            FILES.iter().any(|(known, _)| *known == name),
            "{name} is not in the program"
        );
        found += 1;
    }
    assert_eq!(found, FILES.len());
}

#[test]
fn a_cut_connection_is_shown_as_stale_and_then_as_live_again() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let mut events = dashboard.stream("view=incidents");
    let state = |read: &Value| read.get("frame").map(|f| f["freshness"]["state"].clone());
    events.until(|read| state(read) == Some(json!("live")));
    server.cut();
    let begin = wall();
    events.until(|read| state(read) == Some(json!("stale")));
    assert!(
        begin.elapsed() < Duration::from_secs(9),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(events.documents["frame"]["workloads"], 8);
    let message = events.documents["frame"]["freshness"]["message"].to_string();
    assert!(message.contains("cannot reach the API server"), "{message}");
    server.restore();
    server.change(WORKLOADS, "llama", |w| w["status"]["history"] = json!([]));
    events.until(|read| state(read) == Some(json!("live")));
    events.until(|read| read["incidents"]["rows"].as_object().map_or(0, Map::len) == 2);
}

#[test]
fn a_slow_list_of_pods_delays_only_places_in_the_queue() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    server.hold("/pods");
    let mut events = dashboard.stream("view=queue");
    let rows = |read: &Value| read["queue"]["rows"].as_object().map_or(0, Map::len);
    let has_share = |read: &Value| read["queue"]["shares"]["ml"]["share"].is_number();
    events.until(|read| rows(read) > 0);
    assert!(!has_share(&events.documents), "{:#?}", events.documents);
    let mut beats = 0;
    while beats < 2 {
        beats += usize::from(events.next().0 == "beat");
    }
    // The first list has not timed out.
    assert_eq!(server.release(), 1);
    events.until(has_share);
}

#[test]
fn a_change_arrives_as_a_small_patch() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let mut events = dashboard.stream("view=map");
    events.until(|read| read.get("map").is_some());
    assert_eq!(events.documents["map"]["nodes"]["n01"]["state"], "ready");
    server.change(NODES, "n01", |node| {
        node["spec"]["unschedulable"] = json!(true);
    });
    loop {
        let (kind, data) = events.next();
        if kind == "patch" && data["name"] == "map" {
            assert_eq!(
                data["patch"],
                json!({"nodes": {"n01": {"state": "cordoned"}}})
            );
            break;
        }
    }
}

#[test]
fn markup_in_a_cluster_stays_text() {
    let mut lists = lists();
    let script = "<script>alert(1)</script>";
    let status = &mut lists.get_mut(WORKLOADS).unwrap()[7]["status"];
    status["message"] = json!(script);
    let server = LiveServer::start(lists, Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let answer = dashboard.get("/api/verbs/status?workload=vision/typo");
    assert_eq!(answer.json()["message"], script);
    let missing = dashboard.get(&format!("/api/manifest?workload=ml/{}", "%3Cscript%3E"));
    assert_eq!(missing.json()["error"], "workload: no name");
    let read = dashboard
        .stream("view=workload&workload=vision/typo")
        .of_page("workload");
    assert_eq!(read["workload"]["status"]["message"], script);
}

#[test]
fn idle_accelerators_of_the_overview_are_those_of_the_queue() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let verb = dashboard.get("/api/verbs/queue").json()["idle"].clone();
    // With the pods of other controllers, as the verb reads them.
    assert_eq!(dashboard.post("/api/pods", &json!({})).code, 200);
    dashboard
        .stream("view=health")
        .until(|read| (read.get("frame")).is_some_and(|f| f["otherPods"] == "yes"));
    let read = dashboard.stream("view=overview").of_page("overview");
    let shown = read["overview"]["idle"].as_array().unwrap();
    let idle = shown.iter().map(|part| {
        let reason = part["reason"].as_str().unwrap().to_owned();
        (reason, part["amount"].as_i64().unwrap())
    });
    let of_verb = verb.as_object().unwrap().iter();
    let of_verb = of_verb.map(|(reason, amount)| (reason.clone(), amount.as_i64().unwrap()));
    let of_verb: BTreeMap<String, i64> = of_verb.filter(|(_, amount)| *amount > 0).collect();
    assert_eq!(idle.collect::<BTreeMap<_, _>>(), of_verb);
    assert!(of_verb.values().sum::<i64>() > 0);
}

#[test]
fn pods_of_other_controllers_are_counted_on_request_only() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let mut events = dashboard.stream("view=map");
    events.until(|read| read.get("map").is_some());
    assert_eq!(events.documents["frame"]["otherPods"], "no");
    assert_eq!(
        events.documents["map"]["nodes"]["n30"]["use"],
        json!([[1, 8, "r"]])
    );
    assert_eq!(dashboard.post("/api/pods", &json!({})).code, 200);
    events.until(|read| read["frame"]["otherPods"] == "yes");
    events.until(|read| read["map"]["nodes"]["n30"]["use"] == json!([[null, 2, "o"], [1, 6, "r"]]));
}

#[test]
fn a_what_if_answers_for_a_manifest_and_for_other_nodes() {
    let server = LiveServer::start(lists(), Rights::All);
    let dashboard = Dashboard::over(&server, &[]);
    let asked = |more: Value| {
        let mut body =
            json!({"manifest": manifest("new", 9, 8, &json!({})).to_string(), "preemption": false});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        dashboard.post("/api/whatif", &body).json()
    };
    // Nine nodes are free for it.
    let answer = asked(json!({}));
    assert_eq!(answer["report"]["fits"], true, "{answer}");
    assert!(
        answer["screen"].as_str().unwrap().contains("ml/new"),
        "{answer}"
    );
    assert_eq!(asked(json!({"drained": ["n39"]}))["report"]["fits"], false);
    let added = json!({"drained": ["n39"], "added": {"like": "n40", "count": 1}});
    assert_eq!(asked(added)["report"]["fits"], true);
    assert_eq!(
        asked(json!({"drained": ["n99"]}))["error"],
        "no node \"n99\""
    );
    let text = dashboard.get("/api/manifest?workload=ml/llama").json();
    let text = text["manifest"].as_str().unwrap();
    assert!(
        text.contains("kind: TrainingWorkload") && !text.contains("status"),
        "{text}"
    );
    assert!(text.contains(GPU), "{text}");
}

/// A snapshot file.
fn recorded(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("cluster.json.zst");
    write_snapshot(&path, &snapshot(full_cluster())).unwrap();
    path.display().to_string()
}

#[test]
fn a_snapshot_is_shown_as_such_and_answers_what_if() {
    let folder = tempfile::tempdir().unwrap();
    let dashboard = Dashboard::start(&["--snapshot", &recorded(&folder)]);
    assert!(dashboard.line.contains("(snapshot /"), "{}", dashboard.line);
    let read = dashboard.stream("view=map").of_page("map");
    assert_eq!(read["frame"]["freshness"]["state"], "snapshot");
    assert_eq!(read["map"]["nodes"]["n1"]["use"], json!([[1, 8, "R"]]));
    let body = json!({"manifest": manifest("new", 1, 8, &json!({})).to_string()});
    let answer = dashboard.post("/api/whatif", &body).json();
    assert_eq!(
        answer["report"]["gangs"][0]["verdict"], "Preempts",
        "{answer}"
    );
}
