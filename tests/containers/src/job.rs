//! The trainer as a workload, and the journals of its members in a shared folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use lockstep_api::workload::Phase;
use lockstep_cluster::eventually;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::scenario::Scenario;
use serde_json::{Value, json};

use crate::fleet::LIMIT;

/// The training program and its image.
pub const TRAINER: &str = "lockstep-trainer";
/// Image with the trainer and a shell.
pub const TRAINER_IMAGE: &str = "lockstep.test/trainer:1";
/// Port of rank 0 in every attempt. Supervisors give each attempt its own port, so that processes
/// of an old attempt find no peer. With a fixed port, tests notice such processes.
pub const PORT: u16 = 29_500;
/// Duration of a step.
const STEP_MILLIS: u32 = 10;
/// Steps between two checkpoints.
pub const CHECKPOINT_EVERY: u32 = 20;

/// A training job. Ranks follow the order of the members' names.
#[derive(Debug)]
pub struct Job {
    name: String,
    members: usize,
    folder: PathBuf,
}

/// One line of a member's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Microseconds since 1970.
    pub micros: u64,
    /// `started`, `met`, `stepped` or `mixed`.
    pub event: String,
    /// Attempt of the member's process.
    pub attempt: u64,
}

/// Times by which all members had reached a point, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The process started.
    pub started: u64,
    /// The member met its peers.
    pub met: u64,
    /// The member completed a step.
    pub stepped: u64,
}

impl Job {
    /// A job whose members share a folder below this one.
    pub fn new(folder: &Path, name: &str, members: usize) -> Result<Self> {
        let folder = folder.join("jobs").join(name);
        fs::create_dir_all(&folder)?;
        // Its containers run as another user.
        fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
        Ok(Self {
            name: name.into(),
            members,
            folder,
        })
    }

    /// A job of a scenario.
    pub fn of(t: &Scenario<'_>, name: &str, members: usize) -> Result<Self> {
        Self::new(&t.cluster.folder().join(&t.name), name, members)
    }

    /// Waits until all members completed a step after this time and the workload is ready. Returns
    /// its pods.
    pub async fn trains(&self, t: &Scenario<'_>, since: u64) -> Result<Vec<Pod>> {
        eventually("all members to step", LIMIT, async || self.since(since)).await?;
        t.running(&self.name).await
    }

    /// The folder that its members share.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The workload, with two members per node. `spec` is merged into its spec, `container` into
    /// the training container.
    pub fn manifest(&self, spec: Value, container: Value) -> Result<Value> {
        let members = i32::try_from(self.members)?;
        let mut object = gang(&self.name, members, 4, json!({}));
        object["spec"]["failurePolicy"] = json!({});
        let pod = &mut object["spec"]["groups"][0]["template"]["spec"];
        merge(
            pod,
            json!({
                "terminationGracePeriodSeconds": null,
                "volumes": [{"name": "job", "hostPath": {"path": self.folder, "type": "Directory"}}],
            }),
        );
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        merge(
            &mut pod["containers"][0],
            json!({
                "image": TRAINER_IMAGE,
                "command": [format!("/usr/bin/{TRAINER}")],
                "volumeMounts": [{"name": "job", "mountPath": "/job"}],
                "env": [
                    variable("MASTER_PORT", &PORT.to_string()),
                    variable("CHECKPOINT_DIR", "/job"),
                    variable("CHECKPOINT_EVERY", &CHECKPOINT_EVERY.to_string()),
                    variable("STEP_MILLIS", &STEP_MILLIS.to_string()),
                    variable("PROGRESS_FILE", "/job/progress-$(PET_NODE_RANK)"),
                    variable("JOURNAL_FILE", "/job/journal-$(PET_NODE_RANK)"),
                    variable("COMMAND_FILE", "/job/command-$(PET_NODE_RANK)"),
                ],
            }),
        );
        merge(&mut pod["containers"][0], container);
        merge(&mut object["spec"], spec);
        Ok(object)
    }

    /// Gives a member a command for the time before its next step.
    pub fn command(&self, rank: usize, what: &str) -> Result<()> {
        let draft = self.folder.join("command.new");
        fs::write(&draft, what)?;
        // The member removes the file, in a folder that all users can write to.
        fs::rename(draft, self.folder.join(format!("command-{rank}")))?;
        Ok(())
    }

    /// The journal of a member. Empty before its start.
    pub fn journal(&self, rank: usize) -> Vec<Note> {
        let path = self.folder.join(format!("journal-{rank}"));
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line can be incomplete.
        text.lines().filter_map(note).collect()
    }

    /// Number of times that two attempts met: a member of one attempt connected to rank 0 of
    /// another, or wrote to its journal after a process of a later attempt had started. Attempts
    /// are known only with supervisors.
    pub fn mixed(&self) -> usize {
        let journals = (0..self.members).map(|rank| self.journal(rank));
        mixed(&journals.collect::<Vec<_>>().concat())
    }

    /// Progress of all members after a time. An error names the member that is missing.
    pub fn since(&self, micros: u64) -> Result<Reached> {
        let mut all = Reached {
            started: 0,
            met: 0,
            stepped: 0,
        };
        for rank in 0..self.members {
            let mut journal = self.journal(rank);
            journal.retain(|e| e.micros > micros);
            // Of the process that started last, because an earlier process can start after `micros`
            // too.
            let first = journal.iter().rposition(|e| e.event == "started");
            let own = journal.get(first.unwrap_or(journal.len())..).unwrap_or(&[]);
            let at = |event: &str| {
                let found = own.iter().find(|e| e.event == event);
                found
                    .map(|e| e.micros)
                    .with_context(|| format!("rank {rank} has not {event}"))
            };
            all = Reached {
                started: all.started.max(at("started")?),
                met: all.met.max(at("met")?),
                stepped: all.stepped.max(at("stepped")?),
            };
        }
        Ok(all)
    }

    /// Completed steps according to rank 0.
    pub fn step(&self) -> Result<u64> {
        Ok(self.progress()?.1)
    }

    /// First step of the running attempt according to rank 0.
    pub fn begun_at(&self) -> Result<u64> {
        Ok(self.progress()?.0)
    }

    fn progress(&self) -> Result<(u64, u64)> {
        let text = fs::read_to_string(self.folder.join("progress-0"))?;
        let numbers = text.trim().split_once(' ').context("no progress yet")?;
        Ok((numbers.0.parse()?, numbers.1.parse()?))
    }

    /// Reason and step of the last checkpoint.
    pub fn checkpoint(&self) -> Result<(String, u64)> {
        let text = fs::read_to_string(self.folder.join("checkpoint"))?;
        let mut words = text.split_whitespace();
        let occasion = words.next().context("occasion")?.to_owned();
        Ok((occasion, words.next().context("step")?.parse()?))
    }
}

/// Runs a job of this many members on all nodes. A rival of higher priority preempts the job, which
/// saves a checkpoint and resumes from it after the deletion of the rival. Returns the step of the
/// checkpoint.
pub async fn preempted_job_resumes(t: &Scenario<'_>, members: usize, rivals: usize) -> Result<u64> {
    for (class, value) in [("research", "100"), ("production", "1000")] {
        let create = ["create", "priorityclass", class, "--value", value];
        t.cluster.kubectl(&create).await?;
    }
    let class = |name: &str| json!({"priorityClassName": name});
    let gpt = Job::of(t, "gpt", members)?;
    t.create(gpt.manifest(class("research"), json!({}))?)
        .await?;
    gpt.trains(t, 0).await?;
    let urgent = Job::of(t, "urgent", rivals)?;
    t.create(urgent.manifest(class("production"), json!({}))?)
        .await?;
    urgent.trains(t, 0).await?;
    let (occasion, step) = gpt.checkpoint()?;
    ensure!(occasion == "stop", "the last checkpoint was {occasion}");
    t.workload("gpt", "to wait", |w| {
        let status = w.status.as_ref().context("a status")?;
        ensure!(
            status.preemptions == 1 && status.phase == Some(Phase::Pending),
            "{:?}",
            status.phase
        );
        ensure!(status.restarts.counted == 0, "a restart was charged");
        Ok(())
    })
    .await?;
    let freed = now()?;
    t.workloads()
        .delete("urgent", &DeleteParams::default())
        .await?;
    gpt.trains(t, freed).await?;
    ensure!(gpt.step()? > step, "it began before its checkpoint");
    Ok(step)
}

fn mixed(notes: &[Note]) -> usize {
    let starts = || notes.iter().filter(|n| n.event == "started");
    let is_late = |note: &Note| {
        let later = starts().filter(|s| s.attempt > note.attempt);
        note.attempt > 0
            && later
                .map(|s| s.micros)
                .min()
                .is_some_and(|first| first < note.micros)
    };
    let bad = |note: &&Note| note.event == "mixed" || is_late(note);
    notes.iter().filter(bad).count()
}

fn note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    let (micros, event) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    let attempt = words.next()?.parse().ok()?;
    Some(Note {
        micros,
        event,
        attempt,
    })
}

/// Current time as in the journals: microseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with what real processes note"
)]
pub fn now() -> Result<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_micros())?)
}

#[cfg(test)]
mod tests {
    use super::{mixed, note};

    fn mixed_in(journal: &str) -> usize {
        let notes: Vec<_> = journal.lines().map(|line| note(line).unwrap()).collect();
        mixed(&notes)
    }

    #[test]
    fn attempts_that_follow_each_other_are_not_mixed() {
        let journal = "1 started 1\n2 started 1\n3 met 1\n4 stepped 1\n\
            5 started 2\n6 started 3\n7 started 3\n8 met 3\n9 stepped 3";
        assert_eq!(mixed_in(journal), 0);
        let unknown = "1 started 0\n2 started 0\n3 met 0\n4 started 0";
        assert_eq!(mixed_in(unknown), 0);
    }

    #[test]
    fn what_a_member_of_an_attempt_does_after_the_start_of_the_next_is_noticed() {
        for late in ["started 1", "met 1", "stepped 1"] {
            assert_eq!(mixed_in(&format!("1 started 1\n5 started 2\n6 {late}")), 1);
        }
        assert_eq!(mixed_in("1 started 1\n2 mixed 1"), 1);
    }
}
