//! Error messages about the connection to the cluster.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

use crate::server::{ApiServer, WORKLOADS, refusal};

/// Runs the program against a server, without this machine's kubeconfig.
pub fn ask(server: &str, args: &[&str]) -> Output {
    run(&[args, &["--server", server]].concat())
}

pub fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-lockstep"));
    command
        .current_dir(Path::new("/"))
        .env_clear()
        .env("HOME", "/nonexistent")
        .args(args);
    command
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

pub fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", stderr(out));
    String::from_utf8(out.stdout.clone()).unwrap()
}

/// Faults of an error message: more than one line, parts of Rust errors, or repetitions.
fn marks(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.lines().count() != 1 {
        out.push("not one line".to_owned());
    }
    let of_rust = [
        "ServiceError",
        "ApiError",
        "Os {",
        "os error",
        "Some(",
        "client error",
    ];
    let found = of_rust.iter().filter(|mark| text.contains(**mark));
    out.extend(found.map(|mark| format!("has {mark:?}")));
    let causes: Vec<&str> = text.trim().split(": ").collect();
    let twice = |at: usize| causes[at + 1..].contains(&causes[at]);
    let twice = (0..causes.len()).filter(|at| twice(*at));
    out.extend(twice.map(|at| format!("{:?} twice", causes[at])));
    out
}

pub fn sentence(out: &Output) -> String {
    let text = stderr(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(out.stdout.is_empty(), "{text}");
    assert_eq!(marks(&text), Vec::<String>::new(), "{text}");
    text.trim().to_owned()
}

#[test]
fn errors_that_speak_rust_or_say_something_twice_are_noticed() {
    assert_eq!(marks("error: a: b\n"), [""; 0]);
    for (text, mark) in [
        ("error: a: a", "\"a\" twice"),
        ("error: a: b: a\n", "\"a\" twice"),
        ("error: Os { code: 2 }", "has \"Os {\""),
        ("error: a (os error 2)", "has \"os error\""),
        ("error: a\ncaused by b\n", "not one line"),
        ("", "not one line"),
    ] {
        assert_eq!(marks(text), [mark], "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_the_system_says() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_eq!(
        sentence(&ask(&server, &["explain", "llama"])),
        format!(
            "error: cannot reach the API server at {server}: connection refused; check the server, --context and --server"
        )
    );
}

#[test]
fn the_version_of_the_program_is_shown_without_a_cluster() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for out in [ask(&server, &["version"]), run(&["version"])] {
        let version = env!("CARGO_PKG_VERSION");
        let shown = format!("COMPONENT          VERSION\nkubectl-lockstep   {version}\n");
        assert_eq!(String::from_utf8_lossy(&out.stdout), shown);
        assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
        assert!(stderr(&out).starts_with("error: "), "{}", stderr(&out));
    }
}

#[test]
fn the_version_of_the_client_needs_no_cluster() {
    let version = env!("CARGO_PKG_VERSION");
    let shown = format!("COMPONENT          VERSION\nkubectl-lockstep   {version}\n");
    assert_eq!(stdout(&run(&["version", "--client", "-n", "ml"])), shown);
}

#[test]
fn a_closed_standard_error_does_not_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command(&["agents", "-n", "ml"]).stderr(writer).status();
    assert_eq!(status.unwrap().code(), Some(1));
}

#[test]
fn an_unresponsive_server_is_awaited_no_longer_than_the_request_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let out = ask(&server, &["explain", "llama", "--request-timeout", "1s"]);
    assert_eq!(
        sentence(&out),
        format!(
            "error: the API server at {server} did not respond within 1s; check the server or increase --request-timeout"
        )
    );
}

#[test]
fn refusals_say_what_to_do() {
    let cases = [
        (
            refusal(401, "Unauthorized", "Unauthorized"),
            "error: the API server rejected the credentials (Unauthorized): they have expired or belong to another cluster; log in again, or pass --context, --user or --token",
        ),
        (
            refusal(
                403,
                "Forbidden",
                "trainingworkloads.training.lockstep.dev \"llama\" is forbidden: User \"jo\" cannot get resource \"trainingworkloads\" in API group \"training.lockstep.dev\" in the namespace \"default\"",
            ),
            "error: not allowed: trainingworkloads.training.lockstep.dev \"llama\" is forbidden: User \"jo\" cannot get resource \"trainingworkloads\" in API group \"training.lockstep.dev\" in the namespace \"default\"; ask an administrator of the namespace to bind you ClusterRole lockstep-batch-user",
        ),
        (
            refusal(403, "Forbidden", "denied by another authorizer"),
            "error: not allowed: denied by another authorizer; ask an administrator for this right",
        ),
        (
            refusal(
                403,
                "Forbidden",
                "nodes is forbidden: User \"jo\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
            ),
            "error: not allowed: nodes is forbidden: User \"jo\" cannot list resource \"nodes\" in API group \"\" at the cluster scope; ask an administrator to bind you ClusterRole lockstep-whatif or lockstep-oncall or lockstep-dashboard",
        ),
        (
            refusal(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ),
            "error: Lockstep is not installed in this cluster: the API server does not serve trainingworkloads; install Lockstep with `kubectl apply -k config/overlays/default`",
        ),
        (
            (200, json!("<html>")),
            "error: cannot parse the response of SERVER: expected value at line 1 column 1; check that --server is a Kubernetes API server",
        ),
    ];
    for (answer, expected) in cases {
        let server = ApiServer::start(move |_| answer.clone());
        assert_eq!(
            sentence(&ask(&server.address, &["explain", "llama"])),
            expected.replace("SERVER", &server.address)
        );
    }
}

#[test]
fn a_missing_workload_is_distinguished_from_a_cluster_without_lockstep() {
    let server = ApiServer::with(&[(WORKLOADS, Vec::new())]);
    assert_eq!(
        sentence(&ask(&server.address, &["explain", "llama", "-n", "ml"])),
        "error: TrainingWorkload \"llama\" not found in namespace \"ml\"; `kubectl get tw -A` lists all workloads"
    );
}

#[test]
fn kubeconfigs_that_lead_nowhere_say_where() {
    let missing = "error: no kubeconfig found; pass --kubeconfig or set $KUBECONFIG";
    assert_eq!(sentence(&run(&["explain", "llama"])), missing);
    let named = "error: kubeconfig /nonexistent/c: no such file or directory";
    let args = ["explain", "llama", "--kubeconfig", "/nonexistent/c"];
    assert_eq!(sentence(&run(&args)), named);
    let mut of_variable = command(&["explain", "llama"]);
    let out = of_variable.env("KUBECONFIG", "/nonexistent/c").output();
    assert_eq!(sentence(&out.unwrap()), named);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config").display().to_string();
    let empty = json!({"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": []});
    std::fs::write(&file, empty.to_string()).unwrap();
    let args = ["explain", "llama", "--kubeconfig", file.as_str()];
    assert_eq!(
        sentence(&run(&args)),
        "error: the kubeconfig has no current context; choose one with --context (`kubectl config get-contexts` lists them)"
    );
    assert_eq!(
        sentence(&run(&[&args[..], &["--context", "prod"]].concat())),
        "error: the kubeconfig has no context \"prod\"; `kubectl config get-contexts` lists all contexts"
    );
}

#[test]
fn flags_change_what_the_kubeconfig_says() {
    let server = ApiServer::start(|_| refusal(404, "NotFound", "x"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config").display().to_string();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
                     {"name": "b", "context": {"cluster": "d", "user": "v"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}},
                     {"name": "d", "cluster": {"server": server.address}}],
        "users": [{"name": "u", "user": {"token": "of-u"}}, {"name": "v", "user": {"token": "of-v"}}]});
    std::fs::write(&file, config.to_string()).unwrap();
    let with = |flags: &[&str]| {
        let args = [&["explain", "llama", "--kubeconfig", file.as_str()], flags].concat();
        sentence(&run(&args));
        let seen = server.requests().last().cloned().unwrap();
        let of = |name: &str| seen.headers.get(name).cloned().unwrap_or_default();
        let namespace = seen.path.split('/').nth(5).unwrap_or_default().to_owned();
        [
            namespace,
            of("authorization"),
            of("impersonate-user"),
            of("impersonate-group"),
        ]
    };
    let expected = [
        (vec!["--context", "b"], ["default", "Bearer of-v", "", ""]),
        (vec!["--cluster", "d"], ["ml", "Bearer of-u", "", ""]),
        (
            vec!["--cluster", "d", "--user", "v"],
            ["ml", "Bearer of-v", "", ""],
        ),
        (
            vec!["--server", &server.address, "--token", "t"],
            ["ml", "Bearer t", "", ""],
        ),
        (
            vec!["--cluster", "d", "--as", "jo", "--as-group", "oncall"],
            ["ml", "Bearer of-u", "jo", "oncall"],
        ),
    ];
    for (flags, expected) in expected {
        assert_eq!(with(&flags), expected, "{flags:?}");
    }
}

#[test]
fn the_proxy_of_the_kubeconfig_is_used() {
    let proxy = ApiServer::start(|_| refusal(403, "Forbidden", "no way"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config").display().to_string();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", "proxy-url": proxy.address}}]});
    std::fs::write(&file, config.to_string()).unwrap();
    let said = sentence(&run(&["status", "llama", "--kubeconfig", &file]));
    let unreachable = "error: cannot reach the API server at https://api.example:6443: ";
    assert!(said.starts_with(unreachable), "{said}");
    let asked = proxy.requests().remove(0);
    assert_eq!(
        (asked.method.as_str(), asked.path.as_str()),
        ("CONNECT", "api.example:6443")
    );
}
