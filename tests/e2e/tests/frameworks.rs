//! Frameworks start as docs/environment.md says, in gangs of real processes, on CPUs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_api::condition::types;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

/// Accelerators of each member, if a launcher starts a process for each.
const SEVERAL: i32 = 2;

/// Bound of the time in which the processes of a gang import their frameworks and end.
const START: Duration = Duration::from_mins(5);

/// Defines the number of processes of a gang.
const PROCESSES: &str = "
import os
n = int(os.environ['PET_NNODES']) * int(os.environ['PET_NPROC_PER_NODE'])
";

/// Fails unless each process knows all the others by their ranks.
const GATHERS_RANKS: &str = "
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.process_index())
assert list(ranks) == list(range(n)), ranks
";

const TORCH: &str = "
import torch.distributed as dist
dist.init_process_group('gloo', init_method='env://')
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, dist.get_rank())
assert ranks == list(range(n)), ranks
";

const ACCELERATE: &str = "
from accelerate import Accelerator
from accelerate.utils import gather_object
ranks = gather_object([Accelerator(cpu=True).process_index])
assert ranks == list(range(n)), ranks
";

const LIGHTNING: &str = "
import torch
from lightning import LightningModule, Trainer
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
    def training_step(self, batch, _):
        ranks = self.all_gather(torch.tensor(self.global_rank)).tolist()
        assert ranks == list(range(n)), ranks
        return self.layer(batch).sum()
trainer = TRAINER
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(16, 1)))
";

/// Arguments of a `Trainer` without GPUs, files or a terminal.
const ON_CPUS: &str = "accelerator='cpu', strategy='ddp', max_steps=1, logger=False, \
    enable_checkpointing=False, enable_progress_bar=False, \
    devices=int(os.environ['PET_NPROC_PER_NODE']), ";

/// The code of a row of the table of frameworks.
fn documented(framework: &str) -> Result<String> {
    let page = fs::read_to_string(repository().join("docs/environment.md"))?;
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {framework}")))
        .with_context(|| format!("no row {framework}"))?;
    let use_of = row.split('|').nth(2).context("no second column")?;
    let code = use_of.split('`').nth(1).context("no code in the row")?;
    Ok(code.to_owned())
}

/// A gang of two members with so many accelerators completes. Each runs the command in a folder
/// with the program `train.py`.
async fn completes(name: &str, accelerators: i32, program: &str, command: &str) -> Result<()> {
    let programs = repository().join("target/frameworks/bin");
    let cluster = cluster().await?;
    let folder = cluster.folder().join(format!("frameworks-{name}"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("train.py"), format!("{PROCESSES}{program}"))?;
    let command = format!(
        "export PATH={}:$PATH; cd {}; {command}",
        programs.display(),
        folder.display()
    );
    let shape = Shape {
        args: processes(cluster.folder()),
        ..Shape::default()
    };
    scenario(cluster, name, &shape, async |t| {
        let mut workload = gang(name, 2, accelerators, json!({}));
        let container = &mut workload["spec"]["groups"][0]["template"]["spec"]["containers"][0];
        merge(container, json!({"command": ["sh", "-c", command]}));
        t.create(workload).await?;
        eventually("the workload to complete", START, async || {
            t.condition(name, types::COMPLETE).await.map(drop)
        })
        .await
    })
    .await
}

/// Arguments of nodes that run processes of this machine.
fn processes(folder: &Path) -> Vec<String> {
    vec![
        "--runtime=subprocess".into(),
        format!("--work-dir={}", folder.join("processes").display()),
    ]
}

#[tokio::test]
async fn jax_starts_with_the_documented_call() -> Result<()> {
    let program = format!("import jax\n{}\n{GATHERS_RANKS}", documented("JAX")?);
    completes("jax", 1, &program, "python train.py").await
}

#[tokio::test]
async fn torchrun_starts_with_the_documented_command() -> Result<()> {
    let command = documented("torchrun (static)")?;
    completes("torchrun", SEVERAL, TORCH, &command).await
}

#[tokio::test]
async fn torchrun_starts_with_the_documented_command_for_c10d() -> Result<()> {
    let command = documented("torchrun with c10d")?;
    completes("c10d", SEVERAL, TORCH, &command).await
}

#[tokio::test]
async fn one_process_for_each_member_starts_with_the_documented_command() -> Result<()> {
    let command = documented("one process for each member")?;
    completes("env", 1, TORCH, &command).await
}

#[tokio::test]
async fn accelerate_starts_with_the_documented_command() -> Result<()> {
    let command = documented("accelerate")?;
    completes("accelerate", 1, ACCELERATE, &command).await?;
    // Without this option, it starts several processes only if the machine has several GPUs.
    let several = command.replacen("launch", "launch --multi_gpu", 1);
    completes("accelerate-several", SEVERAL, ACCELERATE, &several).await
}

#[tokio::test]
async fn lightning_starts_with_the_documented_trainer() -> Result<()> {
    let trainer = documented("Lightning's own launcher")?;
    let trainer = trainer.replacen('(', &format!("({ON_CPUS}"), 1);
    let program = LIGHTNING.replace("TRAINER", &trainer);
    completes("lightning", 1, &program, "python train.py").await?;
    completes("lightning-several", SEVERAL, &program, "python train.py").await?;
    let torchrun = documented("torchrun (static)")?;
    completes("lightning-torchrun", SEVERAL, &program, &torchrun).await
}
