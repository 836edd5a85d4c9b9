//! The manager can end at any write, without effect on the result.
//!
//! Each scenario first runs without faults to count its writes. Then it runs once per write: a
//! proxy withholds the answer of the API server to that write, the manager is killed with SIGKILL,
//! and another manager starts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::workload::Phase;
use lockstep_cluster::audit::{self, Follow};
use lockstep_cluster::cluster::Manager;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::proxy::{Fault, Proxy};
use lockstep_cluster::scenario::{PATIENCE, Scenario, hostname, restarts};
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::{IN_TURN, NATIVE_IN_TURN, fresh, native_config, with_backend};
use serde_json::{Value, json};

/// Limit of the time from the end state to the last event.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Number of members of a sweep's gangs, each of which causes several writes.
fn members() -> Result<i32> {
    lockstep_e2e::number("LOCKSTEP_SWEEP_MEMBERS", 2)
}

/// What happens in a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    /// A gang is created.
    Create,
    /// A member of a running gang dies.
    Restart,
    /// All pods of a gang are replaced.
    Recreate,
    /// A gang of higher priority needs the capacity of another.
    Preempt,
}

/// A scenario of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sweep {
    story: Story,
    /// Scheduling backend.
    backend: &'static str,
}

impl Sweep {
    fn name(self) -> String {
        format!("{:?}-{}", self.story, self.backend).to_lowercase()
    }

    fn is_native(self) -> bool {
        self.backend != "Lockstep"
    }

    /// True if kube-scheduler preempts the gang. If it does so while no manager runs, the gang's pods
    /// are gone without a cause, and the gang restarts instead of queueing.
    fn may_miss_the_cause(self) -> bool {
        self.story == Story::Preempt && self.backend == "Kubernetes"
    }

    /// Workloads and their final phases.
    fn ends(self) -> &'static [(&'static str, Phase)] {
        match self.story {
            Story::Preempt if self.may_miss_the_cause() => &[("vip", Phase::Running)],
            Story::Create | Story::Restart | Story::Recreate => &[("g", Phase::Running)],
            Story::Preempt => &[("g", Phase::Pending), ("vip", Phase::Running)],
        }
    }

    /// Preparation before the counted writes.
    async fn prepare(self, t: &Scenario<'_>) -> Result<()> {
        let spec = match self.story {
            Story::Create => return Ok(()),
            Story::Recreate => json!({"failurePolicy": {"rules": [
                {"name": "three", "match": {"exitCodes": {"operator": "In", "values": [3]}}, "action": "RecreateGang"}]}}),
            Story::Restart => json!({}),
            Story::Preempt => json!({"priorityClassName": "low"}),
        };
        t.create(self.gang("g", spec)?).await?;
        t.running("g").await.map(drop)
    }

    fn gang(self, name: &str, spec: Value) -> Result<Value> {
        let spec = with_backend(self.backend, spec);
        Ok(gang(name, members()?, 8, spec))
    }

    /// The cause of the counted writes.
    async fn begin(self, t: &Scenario<'_>) -> Result<()> {
        match self.story {
            Story::Create => t.create(self.gang("g", json!({}))?).await.map(drop),
            Story::Restart | Story::Recreate => {
                t.exit(t.pods("g").await?.first().context("a pod")?, 3)
                    .await
            }
            Story::Preempt => {
                let high = json!({"priorityClassName": "high"});
                t.create(self.gang("vip", high)?).await.map(drop)
            }
        }
    }

    /// Runs the scenario and kills the manager after `kill_after` of its writes. Returns the end
    /// state and the number of the manager's writes.
    async fn run(
        self,
        t: &Scenario<'_>,
        proxy: &Proxy,
        manager: &mut Manager,
        log: &mut Log,
        kill_after: Option<usize>,
    ) -> Result<(Value, usize)> {
        log.forget()?;
        self.prepare(t).await?;
        let writes = count_writes(proxy, &t.name, kill_after);
        self.begin(t).await?;
        if kill_after.is_some() {
            // On a busy machine, a pass can process several changes, so that the second run has
            // fewer writes.
            let all_over = async {
                self.end(t, log).await?;
                tokio::time::sleep(LAST_WORD).await;
                anyhow::Ok(())
            };
            tokio::select! { biased; withheld = proxy.withheld() => withheld?, over = all_over => over? }
            manager.process.kill()?;
            proxy.clear();
            *manager = t.cluster.start_manager_through(proxy, "a").await?;
        }
        let end = self.end(t, log).await?;
        let writes = writes.load(Ordering::SeqCst);
        if self.may_miss_the_cause() {
            t.kubectl(&["delete", "tw", "vip"]).await?;
            t.running("g").await?;
        }
        t.kubectl(&["delete", "tw", "--all"]).await?;
        for workload in ["g", "vip"] {
            t.no_pods(workload).await?;
        }
        if self.is_native() {
            lockstep_e2e::no_native_groups(t).await?;
        }
        Ok((end, writes))
    }

    /// The end state, without values that differ between two runs without faults: times, IDs and
    /// addresses.
    async fn end(self, t: &Scenario<'_>, log: &mut Log) -> Result<Value> {
        let mut end = BTreeMap::new();
        for (name, phase) in self.ends() {
            let workload = t
                .workload(name, &format!("to be {phase:?}"), |w| {
                    let status = w.status.as_ref().context("status")?;
                    ensure!(status.phase == Some(*phase), "phase {:?}", status.phase);
                    ensure!(
                        status.observed_generation == w.metadata.generation.unwrap_or(0),
                        "not observed"
                    );
                    ensure!(
                        status.domains.iter().all(|d| !d.is_restarting()),
                        "an incident is open"
                    );
                    ensure!(
                        !matches!(self.story, Story::Restart | Story::Recreate)
                            || status.restarts.total == 1,
                        "no restart yet"
                    );
                    Ok(())
                })
                .await?;
            let status = workload.status.context("status")?;
            let conditions: BTreeMap<_, _> = status
                .conditions
                .iter()
                .map(|c| (c.type_.clone(), format!("{:?} {}", c.status, c.reason)))
                .collect();
            let pods: BTreeMap<_, _> = t
                .pods(name)
                .await?
                .iter()
                .map(|p| (hostname(p), restarts(p)))
                .collect();
            let history: Vec<_> = status
                .history
                .iter()
                .map(|h| {
                    json!([
                        h.attempt,
                        h.action,
                        h.cause.kind,
                        h.cause.exit_code,
                        h.counted,
                        h.recreated
                    ])
                })
                .collect();
            let counters = json!({"attempt": status.attempt, "total": status.restarts.total, "inPlace": status.restarts.in_place,
                "recreated": status.restarts.recreated, "counted": status.restarts.counted,
                "preemptions": status.preemptions, "ready": status.ready});
            end.insert(
                *name,
                json!({"conditions": conditions, "pods": pods, "history": history, "counters": counters}),
            );
        }
        // The answer to a create that was interrupted is not in the log, but its pod exists. Names
        // do not distinguish pods: a replacement has the name of a pod that is already gone.
        let mut incarnations = log.created(&t.name)?;
        incarnations.extend(
            t.all_pods()
                .list(&ListParams::default())
                .await?
                .iter()
                .filter_map(ResourceExt::uid),
        );
        let incarnations = (!self.may_miss_the_cause()).then_some(incarnations.len());
        Ok(json!({"workloads": end, "incarnations": incarnations}))
    }

    async fn play(self, cluster: &Cluster) -> Result<()> {
        let proxy = Proxy::start(cluster).await?;
        let mut manager = cluster.start_manager_through(&proxy, "a").await?;
        // Durations on the node do not matter here.
        let shape = Shape {
            nodes: members()?,
            args: vec!["--latency-profile=zero".into()],
            ..Shape::default()
        };
        let mut log = Log {
            added: cluster.audit.follow()?,
            pods: BTreeSet::new(),
        };
        scenario(cluster, &self.name(), &shape, async |t| {
            let run = self.run(t, &proxy, &mut manager, &mut log, None);
            let (expected, points) = run.await?;
            let mut different = Vec::new();
            for k in 1..=points {
                let run = self.run(t, &proxy, &mut manager, &mut log, Some(k));
                let (end, _) = run
                    .await
                    .with_context(|| format!("crash after write {k} of {points}"))?;
                if end != expected {
                    different.push(format!("after write {k}: {end:#}"));
                }
            }
            // Not with println, which the test harness hides: the numbers are part of the result.
            let (name, wrong) = (self.name(), different.len());
            writeln!(
                std::io::stderr(),
                "crash sweep {name}: {points} points, {wrong} differences"
            )?;
            ensure!(
                different.is_empty(),
                "expected {expected:#}\n{}",
                different.join("\n")
            );
            Ok(())
        })
        .await
    }
}

/// Pods that managers have created in a run, from the audit log of the sweep.
struct Log {
    added: Follow,
    /// UIDs.
    pods: BTreeSet<String>,
}

impl Log {
    /// Starts another run.
    fn forget(&mut self) -> Result<()> {
        self.added.added()?;
        self.pods.clear();
        Ok(())
    }

    /// Pods created in this namespace since the start of the run.
    fn created(&mut self, namespace: &str) -> Result<BTreeSet<String>> {
        let created = self.added.added()?.into_iter().filter(|w| {
            w.user == audit::MANAGER
                && w.namespace == namespace
                && w.resource == "pods"
                && w.verb == "create"
                && w.subresource.is_empty()
                && w.code == 201
                && !w.dry_run
        });
        self.pods.extend(created.map(|w| w.uid));
        Ok(self.pods.clone())
    }
}

/// Sweeps over these stories, one after the other.
async fn sweep(cluster: &Cluster, backend: &'static str, stories: &[Story]) -> Result<()> {
    for story in stories {
        let sweep = Sweep {
            story: *story,
            backend,
        };
        sweep.play(cluster).await.with_context(|| sweep.name())?;
    }
    Ok(())
}

/// Counts writes in a namespace, and withholds the answer to write number `withheld`.
fn count_writes(proxy: &Proxy, namespace: &str, withheld: Option<usize>) -> Arc<AtomicUsize> {
    let writes = Arc::new(AtomicUsize::new(0));
    let (counted, namespace) = (writes.clone(), namespace.to_owned());
    proxy.inject(move |call| {
        if !call.is_write() || call.namespace != namespace {
            return Fault::None;
        }
        let write = counted.fetch_add(1, Ordering::SeqCst) + 1;
        if Some(write) == withheld {
            Fault::WithholdAnswer
        } else {
            Fault::None
        }
    });
    writes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_changes_nothing() -> Result<()> {
    let stories = [Story::Create, Story::Restart, Story::Preempt];
    let cluster = fresh("crashes", json!({})).await?;
    if !cluster.is_ours("crashes") {
        return Ok(());
    }
    sweep(&cluster, "Lockstep", &stories).await
}

/// The same for gangs of native groups.
async fn natively(backend: &'static str, stories: &[Story]) -> Result<()> {
    NATIVE_IN_TURN
        .run("crashes", native_config(json!({})), async |cluster| {
            sweep(cluster, backend, stories).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_with_native_groups_changes_nothing() -> Result<()> {
    natively("Both", &[Story::Create, Story::Recreate]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make test-full"]
async fn a_crash_at_any_write_of_a_preemption_with_native_groups_changes_nothing() -> Result<()> {
    natively("Both", &[Story::Preempt]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make test-full"]
async fn a_crash_at_any_write_for_gangs_of_kube_scheduler_changes_nothing() -> Result<()> {
    let all = [
        Story::Create,
        Story::Restart,
        Story::Recreate,
        Story::Preempt,
    ];
    natively("Kubernetes", &all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_managers_one_acts_and_the_other_takes_over() -> Result<()> {
    IN_TURN.run("the handover", json!({}), hand_over).await
}

async fn hand_over(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    // Without streamed lists, managers list in pages.
    let proxy = Proxy::start(cluster).await?;
    proxy.inject(|call| {
        if call.is_streamed_list {
            Fault::Refuse(1)
        } else {
            Fault::None
        }
    });
    let mut first = cluster.start_manager_through(&proxy, "a").await?;
    let second = cluster.start_manager_through(&proxy, "b").await?;
    scenario(cluster, "handover", &Shape::default(), async |t| {
        t.create(gang("one", 2, 8, json!({}))).await?;
        let pods = t.running("one").await?;
        let leader = leader(t).await?;
        ensure!(
            leader.ends_with("-a"),
            "{leader} leads, although the other was first"
        );
        first.process.kill()?;
        t.create(gang("two", 2, 8, json!({}))).await?;
        t.running("two").await?;
        let leader = self::leader(t).await?;
        ensure!(leader.ends_with("-b"), "{leader} leads");
        let same = t
            .pods("one")
            .await?
            .iter()
            .map(ResourceExt::uid)
            .eq(pods.iter().map(ResourceExt::uid));
        ensure!(same, "running members were disturbed");
        Ok(())
    })
    .await?;
    let status = second.process.terminate(Duration::from_secs(10)).await?;
    ensure!(status.success(), "after SIGTERM: {status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_renewal_times_out_resumes_after_a_successful_renewal() -> Result<()> {
    IN_TURN.run("a slow API server", json!({}), pause).await
}

async fn pause(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let proxy = Proxy::start(cluster).await?;
    let mut manager = cluster.start_manager_through(&proxy, "a").await?;
    scenario(cluster, "pause", &Shape::default(), async |t| {
        t.create(gang("one", 2, 8, json!({}))).await?;
        t.running("one").await?;
        let before = t.lease().await?;
        // Longer than the renew deadline of these tests.
        proxy.inject(|_| Fault::Delay(Duration::from_secs(4)));
        eventually(
            "the lease to be as old as its duration",
            PATIENCE,
            async || {
                let spec = t.lease().await?;
                let renewed = spec.renew_time.context("a time of renewal")?.0.as_second();
                let age = lockstep_cluster::time_of_day().timestamp() - renewed;
                ensure!(
                    age > i64::from(spec.lease_duration_seconds.unwrap_or(0)),
                    "{age} s"
                );
                Ok(())
            },
        )
        .await?;
        proxy.clear();
        t.create(gang("two", 2, 8, json!({}))).await?;
        t.running("two").await?;
        let after = t.lease().await?;
        ensure!(
            (&after.holder_identity, after.lease_transitions)
                == (&before.holder_identity, before.lease_transitions),
            "{before:?}: {after:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(manager.process.ended()?.is_none(), "the manager has ended");
    Ok(())
}

async fn leader(t: &Scenario<'_>) -> Result<String> {
    t.lease().await?.holder_identity.context("a holder")
}
