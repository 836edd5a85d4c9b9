//! Use of `kubectl lockstep` by a person on call.

use anyhow::{Context, Result, bail, ensure};
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::annotations;
use lockstep_cluster::audit::{ON_CALL, WHATIF};
use lockstep_cluster::manifests::{gang, parse};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::workspace_binary;
use lockstep_cluster::scenario::{PATIENCE, Scenario};
use lockstep_cluster::wait::eventually;
use lockstep_cluster::{LOOK_AROUND, scenario};
use lockstep_e2e::cluster;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

fn says(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    Ok(())
}

/// A gang whose second member failed, and that runs again.
async fn failed_once(t: &Scenario<'_>) -> Result<String> {
    let in_place = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}}});
    t.create(gang("llama", 3, 8, in_place)).await?;
    let pods = t.running("llama").await?;
    t.exit(&pods[1], 3).await?;
    t.restarted("llama", 1).await?;
    Ok(pods[1].name_any())
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_top_show_failed_members_nodes_and_held_accelerators() -> Result<()> {
    scenario(cluster().await?, "shift", &Shape::default(), async |t| {
        let failed = failed_once(t).await?;
        let status = t.lockstep(&["status", "llama"]).await?;
        let why =
            format!("container trainer exited with code 3 (Error) in pod {failed} on node shift-");
        let parts = [
            "llama: Running, 3/3 ready, attempt 2, 24 accelerators",
            &why,
            "Restarts left: 9 of 10 within 24h",
            "workers/",
        ];
        says(&status, &parts)?;
        let names = t.lockstep(&["status", "llama", "-o", "name"]).await?;
        ensure!(
            names == "trainingworkload.training.lockstep.dev/llama\n",
            "{names}"
        );
        says(
            &t.lockstep(&["top"]).await?,
            &["0          1         24             0         0"],
        )?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_restarted_suspended_and_resumed_by_one_field_each() -> Result<()> {
    scenario(cluster().await?, "verbs", &Shape::default(), async |t| {
        failed_once(t).await?;
        let dry = t
            .lockstep(&["restart", "llama", "--dry-run=server"])
            .await?;
        says(
            &dry,
            &["spec.restartNonce 0 -> 1", "the API server would accept it"],
        )?;
        let nonce = t.workloads().get("llama").await?.spec.restart_nonce;
        ensure!(nonce == 0, "a dry run has written");
        t.lockstep(&["restart", "llama"]).await?;
        let status = t.restarted("llama", 2).await?;
        ensure!(status.restarts.counted == 1, "{:?}", status.restarts);

        let created = t.workloads().get("llama").await?.metadata;
        let created = serde_json::to_value(created.creation_timestamp)?;
        let created = created.as_str().context("a creation time")?;
        t.lockstep(&["checkpoint", "llama", "--record", "--at", created])
            .await?;
        let workload = t.workloads().get("llama").await?;
        let at = workload.annotations().get(annotations::LAST_CHECKPOINT);
        ensure!(at.is_some_and(|at| at == created), "{at:?}");

        t.lockstep(&["suspend", "llama"]).await?;
        t.condition("llama", types::SUSPENDED).await?;
        says(
            &t.lockstep(&["status", "llama"]).await?,
            &["Suspended", "kubectl lockstep resume llama"],
        )?;
        t.lockstep(&["resume", "llama"]).await?;
        t.running("llama").await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_is_run_with_the_pod_of_a_rank_up_to_the_kubelet() -> Result<()> {
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster().await?, "entered", &shape, async |t| {
        t.create(gang("llama", 2, 8, json!({}))).await?;
        t.running("llama").await?;
        // Hollow nodes have no kubelet's server.
        for command in [
            "exec -n entered llama --rank 1 -- true",
            "cp -n entered llama/1:/tmp/x x",
            "port-forward -n entered llama :80",
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let said = t.cluster.lockstep(&words).await.err().context(command)?;
            says(&format!("{said:#}"), &["dial tcp"]).context(command)?;
        }
        says(&t.lockstep(&["get", "llama"]).await?, &["NAME", "llama"])
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_sees_what_is_installed_and_kubectl_completes_the_verbs() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster().await?, "doctor", &shape, async |t| {
        let said = t.cluster.lockstep(&["doctor"]).await?;
        let healthy = [
            "5 resources are served as v1alpha1",
            "3 policies are in force",
            " is the leader, lease renewed ",
            "all commands are allowed",
        ];
        says(&said, &healthy)?;
        // Managers are processes here instead of pods.
        says(&said, &["the manager runs outside the cluster"])?;
        says(
            &t.cluster.lockstep(&["agents", "-o", "wide"]).await?,
            &["NODE", "doctor-0000"],
        )?;
        says(
            &t.cluster.lockstep(&["version"]).await?,
            &["API", "v1alpha1"],
        )?;

        t.create(gang("llama", 1, 8, json!({}))).await?;
        let folder = t.cluster.folder().display().to_string();
        t.cluster
            .lockstep(&["completion", "--kubectl", &folder])
            .await?;
        let program = workspace_binary("kubectl-lockstep")?;
        let programs = program.parent().context("a folder")?.display().to_string();
        let path = format!("{folder}:{programs}:{}", std::env::var("PATH")?);
        let complete = async |words: &[&str]| {
            let words = [&["__complete", "lockstep"], words].concat();
            t.cluster.kubectl_with(&words, &[("PATH", &path)]).await
        };
        says(&complete(&["sta"]).await?, &["status"])?;
        // The shell does not wait for names longer than a second.
        eventually("the name is completed", PATIENCE, async || {
            says(
                &complete(&["status", "-n", &t.name, ""]).await?,
                &["llama\n"],
            )
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_kept_demo_show_running_and_waiting_workloads() -> Result<()> {
    scenario(cluster().await?, "kept", &Shape::default(), async |t| {
        t.create(gang("llama", 3, 8, json!({}))).await?;
        t.running("llama").await?;
        t.create(gang("later", 2, 8, json!({}))).await?;
        t.condition_is("later", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        let program = workspace_binary("kubectl-lockstep")?;
        let programs = program.parent().context("a folder")?.display();
        let path = format!("{}:{programs}", std::env::var("PATH")?);
        for command in LOOK_AROUND {
            let words: Vec<&str> = command.split(' ').collect();
            let said = t.cluster.kubectl_with(&words, &[("PATH", &path)]).await;
            // The namespace, or the count of the agents of all nodes.
            let shown = if command == "lockstep agents" {
                " agents: "
            } else {
                "kept"
            };
            says(&said.context(command)?, &[shown]).context(command)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_is_watched_shows_what_changes() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster().await?, "watched", &shape, async |t| {
        t.create(gang("llama", 1, 8, json!({}))).await?;
        let mut status = tokio::process::Command::new(workspace_binary("kubectl-lockstep")?)
            .args(["status", "llama", "--watch", "-n", &t.name])
            .env("KUBECONFIG", t.cluster.kubeconfig())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(status.stdout.take().context("its output")?).lines();
        let running = async {
            while let Some(line) = lines.next_line().await? {
                if line.starts_with("watched/llama: Running, 1/1 ready") {
                    return Ok(());
                }
            }
            bail!("it has ended")
        };
        tokio::time::timeout(PATIENCE, running).await?
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_is_said_so_with_the_flag_that_helps() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("another kubeconfig") {
        return Ok(());
    }
    let mut config: Value = parse(&std::fs::read_to_string(cluster.kubeconfig())?)?;
    let known = config["clusters"][0]["cluster"].as_object_mut();
    let known = known.context("a cluster")?;
    known.remove("certificate-authority");
    known.remove("certificate-authority-data");
    let file = cluster
        .folder()
        .join("untrusting.json")
        .display()
        .to_string();
    std::fs::write(&file, config.to_string())?;
    let queue = ["queue", "-n", "default", "--kubeconfig", &*file];
    let said = cluster
        .lockstep(&queue)
        .await
        .err()
        .context("trusted")?
        .to_string();
    says(
        &said,
        &[
            "error: the certificate of the API server at https://",
            " is not trusted: ",
            "--certificate-authority",
        ],
    )?;
    let trusting = [&queue[..], &["--insecure-skip-tls-verify"]].concat();
    cluster.lockstep(&trusting).await?;
    Ok(())
}

/// Runs `kubectl lockstep` as a user with one cluster role.
async fn with_role(
    t: &Scenario<'_>,
    user: &str,
    role: &str,
    verbs: &[&[&str]],
) -> Result<Vec<String>> {
    let (role, subject) = (format!("--clusterrole={role}"), format!("--user={user}"));
    t.cluster
        .kubectl(&["create", "clusterrolebinding", user, &role, &subject])
        .await?;
    let token = format!("user:{user}");
    let mut answers = Vec::new();
    for verb in verbs {
        let args = [verb, &["--token", &*token][..]].concat();
        let answer = t.cluster.lockstep(&args).await;
        // `whatif` fails if the gang does not fit. Its output is in the error.
        answers.push(answer.unwrap_or_else(|failed| failed.to_string()));
    }
    t.cluster
        .kubectl(&["delete", "clusterrolebinding", user])
        .await?;
    Ok(answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_roles_suffice_for_whatif_and_on_call_commands() -> Result<()> {
    let shape = Shape {
        nodes: 1,
        ..Shape::default()
    };
    scenario(cluster().await?, "readers", &shape, async |t| {
        if !t.cluster.is_ours("tokens of other identities") {
            return Ok(());
        }
        t.create(gang("llama", 1, 8, json!({}))).await?;
        t.running("llama").await?;
        let manifest = t
            .cluster
            .folder()
            .join("readers.json")
            .display()
            .to_string();
        std::fs::write(&manifest, gang("next", 1, 8, json!({})).to_string())?;
        let snapshot = t.cluster.folder().join("readers.zst").display().to_string();
        let asked = [
            &["queue"][..],
            &["snapshot", "-o", &*snapshot],
            &["whatif", "-n", &*t.name, "-o", "json", "-f", &*manifest],
        ];
        let answers = with_role(t, WHATIF, "lockstep-whatif", &asked).await?;
        ensure!(
            !answers.iter().any(|a| a.contains("not allowed")),
            "{answers:?}"
        );
        says(&answers[2], &["\"fits\""])?;
        ensure!(!answers[2].contains("configuration"), "{}", answers[2]);

        let asked = [&["doctor"][..], &["agents"], &["top"], &["version"]];
        let answers = with_role(t, ON_CALL, "lockstep-oncall", &asked).await?;
        ensure!(
            !answers.iter().any(|a| a.contains("no permission to read")),
            "{answers:?}"
        );
        says(
            &answers[0],
            &[
                "policies are in force",
                " is the leader, lease renewed ",
                "not allowed in namespace default: restart",
            ],
        )?;
        says(&answers[2], &[&t.name, "Nodes have"])
    })
    .await
}
