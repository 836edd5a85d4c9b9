//! Commands of the on-call page, symptoms, runbooks and alerts work for a user with role `lockstep-oncall`: each
//! command that reads runs on a cluster with a gang that was restarted.

use anyhow::{Context, Result, ensure};
use lockstep_cluster::audit::ON_CALL;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{gang, parse};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::workspace_binary;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::Scenario;
use lockstep_e2e::cluster;
use serde_json::{Value, json};

/// Verbs that only read.
const VERBS: [&str; 4] = ["get", "describe", "auth", "logs"];
/// Verbs of `kubectl lockstep` that only read.
const OF_LOCKSTEP: [&str; 7] = [
    "agents", "doctor", "explain", "logs", "queue", "status", "top",
];
/// Commands without output here: manager and agents are processes, and nothing was evicted.
const NOTHING: [&str; 4] = [" pods", " logs", "reason=Preempt", " pdb "];
/// Replaces names of gangs.
const GANG: &str = "looked-at";
/// Names of gangs in the pages.
const NAMES: [&str; 3] = ["NAME", "large", "tuning"];
/// Kinds of bindings of the role, and its flag.
const BINDINGS: [[&str; 2]; 2] = [
    ["clusterrolebinding", "--clusterrole=lockstep-oncall"],
    ["rolebinding", "--role=lockstep-oncall"],
];
/// Possible mistakes in pages, and their errors.
const MISTAKES: [(&str, &str); 5] = [
    (
        "kubectl -n lockstep-system get lease lockstep-manager -o yaml",
        "\"lockstep-manager\" not found",
    ),
    (
        "kubectl get tw NAME -o yaml | grep Attemptt",
        "no Attemptt in",
    ),
    (
        "kubectl -n lockstep-systm get pods",
        "\"lockstep-systm\" not found",
    ),
    ("kubectl get podgroop", "a resource type \"podgroop\""),
    ("kubectl get leases -A -l a=b", "says nothing"),
];

/// A command without `kubectl`, and the text that its output is searched for.
#[derive(Debug)]
struct RenderOptions {
    command: String,
    pattern: Option<String>,
}

/// The command, if it only reads objects.
fn look(text: &str) -> Option<RenderOptions> {
    let command = text.strip_prefix("kubectl ")?;
    let (command, filter) = command.split_once(" | ").unwrap_or((command, ""));
    let mut words = command.split_whitespace();
    let mut verb = words.next()?;
    if verb == "-n" {
        verb = words.nth(1)?;
    }
    let reads = if verb == "lockstep" {
        OF_LOCKSTEP.contains(&words.next()?)
    } else {
        // Without arguments, `kubectl describe` and `kubectl auth can-i` are only mentioned.
        words.nth(usize::from(verb == "auth"))?;
        VERBS.contains(&verb)
    };
    let pattern = filter.split_whitespace().next_back();
    reads.then(|| RenderOptions {
        command: command.trim().to_owned(),
        pattern: pattern.map(|p| p.trim_matches('\'').to_owned()),
    })
}

/// Commands of a page, from blocks and in backticks.
fn looks(page: &str) -> Vec<RenderOptions> {
    let mut out = Vec::new();
    for (at, part) in page.split("```").enumerate() {
        if at % 2 == 1 {
            let lines = part.lines().map(|line| line.trim_start_matches("$ "));
            out.extend(lines.filter_map(look));
        } else {
            out.extend(part.split('`').skip(1).step_by(2).filter_map(look));
        }
    }
    out
}

/// Commands of an alert's description. A command ends with its clause.
fn looks_of_alert(description: &str) -> Vec<RenderOptions> {
    let description = description
        .replace("{{ $labels.namespace }}", "NAMESPACE")
        .replace("{{ or $labels.workload `NAME` }}", "NAME");
    let commands = description.match_indices("kubectl ");
    commands
        .filter_map(|(at, _)| {
            let clause = description[at..].split(", ").next()?.split("; ").next()?;
            look(clause)
        })
        .collect()
}

/// Commands of all runbooks and alerts, each with its place.
fn all() -> Result<Vec<(String, RenderOptions)>> {
    let mut out = Vec::new();
    let runbooks = std::fs::read_dir(repository().join("docs/runbooks"))?;
    let mut pages = vec![
        repository().join("docs/oncall.md"),
        repository().join("docs/symptoms.md"),
    ];
    for page in runbooks {
        pages.push(page?.path());
    }
    for page in pages {
        let looks = looks(&std::fs::read_to_string(&page)?);
        out.extend(looks.into_iter().map(|l| (page.display().to_string(), l)));
    }
    let of_pages = out.len();
    let rules = repository().join("config/components/prometheus/prometheus_rule.yaml");
    let rules: Value = parse(&std::fs::read_to_string(rules)?)?;
    let groups = rules["spec"]["groups"].as_array().into_iter().flatten();
    for rule in groups.flat_map(|g| g["rules"].as_array().into_iter().flatten()) {
        let description = rule["annotations"]["description"].as_str();
        let looks = looks_of_alert(description.unwrap_or_default());
        out.extend(looks.into_iter().map(|l| (rule["alert"].to_string(), l)));
    }
    let of_alerts = out.len() - of_pages;
    ensure!(
        of_pages >= 20 && of_alerts >= 6,
        "{of_pages} commands of runbooks and {of_alerts} of alerts were found"
    );
    Ok(out)
}

/// Runs a command with the names of the test.
async fn run(t: &Scenario<'_>, look: &RenderOptions) -> Result<()> {
    let words = look.command.split_whitespace().map(|word| match word {
        name if NAMES.contains(&name) => GANG.to_owned(),
        "NAMESPACE" => t.name.clone(),
        word => word.replace('\'', ""),
    });
    let words: Vec<String> = words.collect();
    let args: Vec<&str> = words.iter().map(String::as_str).collect();
    let of_namespace = args.contains(&GANG) || args.starts_with(&["get", "tw"]);
    let elsewhere = args.iter().any(|a| matches!(*a, "-n" | "-A"));
    let token = format!("user:{ON_CALL}");
    let mut all = [&args[..], &["--token", &*token]].concat();
    if of_namespace && !elsewhere {
        all.extend(["-n", &*t.name]);
    }
    // kubectl finds the plugin in PATH.
    let program = workspace_binary("kubectl-lockstep")?;
    let programs = program.parent().context("a folder")?.display();
    let path = format!("{programs}:{}", std::env::var("PATH")?);
    let said = match t.cluster.kubectl_with(&all, &[("PATH", &path)]).await {
        // Nodes have no kubelet that serves logs. The API server checks the right first.
        Err(error) if args.contains(&"logs") && !error.to_string().contains("forbidden") => {
            return Ok(());
        }
        said => said?,
    };
    if said.trim().is_empty() {
        let expected = format!("{} ", look.command);
        ensure!(NOTHING.iter().any(|n| expected.contains(n)), "says nothing");
        // A namespace that does not exist is also empty.
        if let Some(at) = args.iter().position(|a| *a == "-n") {
            let namespace = args.get(at + 1).context("a namespace")?;
            t.cluster.kubectl(&["get", "namespace", namespace]).await?;
        }
    } else if let Some(pattern) = &look.pattern {
        ensure!(said.contains(pattern), "no {pattern} in {said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_on_call_role_runs_the_commands_of_its_pages_and_of_alerts() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("the names of the shipped overlay") {
        return Ok(());
    }
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "runbooks", &shape, async |t| {
        t.create(gang(GANG, 2, 8, json!({}))).await?;
        let pods = t.running(GANG).await?;
        t.exit(pods.first().context("a pod")?, 3).await?;
        t.restarted(GANG, 1).await?;
        let to = format!("--user={ON_CALL}");
        for [kind, role] in BINDINGS {
            let bind = [
                "create",
                kind,
                "runbooks",
                role,
                &to,
                "-n",
                "lockstep-system",
            ];
            t.cluster.kubectl(&bind).await?;
        }
        let mut wrong = Vec::new();
        for (place, look) in all()? {
            if let Err(error) = run(t, &look).await {
                wrong.push(format!("{place}: {look:?}: {error:#}"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (mistake, expected) in MISTAKES {
            let refused = run(t, &look(mistake).context("looks at nothing")?).await;
            let refused = refused.err().with_context(|| format!("{mistake}: taken"))?;
            ensure!(
                format!("{refused:#}").contains(expected),
                "{mistake}: {refused:#}"
            );
        }
        for [kind, _] in BINDINGS {
            let unbind = ["delete", kind, "runbooks", "-n", "lockstep-system"];
            t.cluster.kubectl(&unbind).await?;
        }
        Ok(())
    })
    .await
}

#[test]
fn commands_that_write_or_are_no_commands_are_not_run() {
    let page = "`kubectl describe` and `kubectl auth can-i` say\n```sh\nkubectl -n a get lease b -o yaml | grep -A3 'holder'\nkubectl delete tw c\n```\n`kubectl get pdb -A`, `kubectl -n a delete lease b`\n```console\n$ kubectl lockstep top\nNODE\n$ kubectl lockstep suspend c\n```";
    let found: Vec<String> = looks(page).into_iter().map(|l| l.command).collect();
    assert_eq!(
        found,
        ["-n a get lease b -o yaml", "get pdb -A", "lockstep top"]
    );
}

#[test]
fn a_command_in_a_description_ends_with_its_clause() {
    let description = "Which: kubectl get tw -n {{ $labels.namespace }} -o wide; who: kubectl get pods,pdb -A, then kubectl lockstep queue. Where: kubectl -n a describe pods | grep 'b c'";
    let found: Vec<String> = looks_of_alert(description)
        .into_iter()
        .map(|l| l.command)
        .collect();
    assert_eq!(
        found,
        [
            "get tw -n NAMESPACE -o wide",
            "get pods,pdb -A",
            "-n a describe pods"
        ]
    );
}
