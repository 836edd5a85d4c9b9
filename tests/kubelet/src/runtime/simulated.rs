//! A runtime that only pretends: containers are entries in the table, times come from the latency
//! profile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use parking_lot::Mutex;

use super::later::Later;
use super::script::{FAILED_MOUNT, OnTerm, START_ERROR, Script};
use super::table::{Ended, Table};
use super::{Fault, Runtime, Unsupported};
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::{Action, ContainerView, PodDesc, PodView, SandboxView, State};

/// Faults that are on.
#[derive(Debug, Default)]
struct Faults {
    /// Added to the start of every container.
    slow_start: Duration,
    /// Container ids that neither react to SIGTERM nor pass probes.
    hung: BTreeSet<String>,
}

/// The simulated runtime of one node.
#[derive(Debug)]
pub struct Simulated {
    shared: Arc<Shared>,
    /// Everything under way; dropping the runtime ends it.
    later: Later,
}

#[derive(Debug)]
struct Shared {
    table: Arc<Table>,
    profile: LatencyProfile,
    clock: Clock,
    node_name: String,
    images: Mutex<BTreeSet<String>>,
    faults: Mutex<Faults>,
    ips: Arc<AtomicU32>,
    next_id: AtomicU32,
}

impl Simulated {
    /// The runtime of node `node_name`. `ips` numbers the pods of all nodes.
    pub fn new(
        node_name: &str,
        table: Table,
        profile: LatencyProfile,
        clock: Clock,
        ips: Arc<AtomicU32>,
    ) -> Self {
        let shared = Shared {
            table: Arc::new(table),
            profile,
            clock,
            node_name: node_name.to_owned(),
            images: Mutex::default(),
            faults: Mutex::default(),
            ips,
            next_id: AtomicU32::new(1),
        };
        Self {
            shared: Arc::new(shared),
            later: Later::default(),
        }
    }

    fn after(&self, wait: Duration, work: impl FnOnce(&Shared) + Send + 'static) {
        let shared = self.shared.clone();
        self.later.after(wait, move || work(&shared));
    }

    fn start(&self, pod: &Arc<PodDesc>, name: &str, attempt: i32) {
        let Some((kind, spec)) = pod.containers().find(|(_, c)| c.name == name) else {
            return;
        };
        let shared = &self.shared;
        let number = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", shared.node_name);
        if !shared
            .table
            .create(&pod.uid, &id, name, attempt, shared.clock.now())
        {
            return;
        }
        let pulled = !shared
            .images
            .lock()
            .insert(spec.image.clone().unwrap_or_default());
        let pull = if pulled {
            Duration::ZERO
        } else {
            shared.profile.image_pull
        };
        let wait = pull + shared.profile.start + shared.faults.lock().slow_start;
        let script = Script::of(kind, spec);
        if let Some(reason) = script.not_created {
            return self.after(wait, move |s| {
                s.table.not_created(&id, &reason, s.clock.now());
            });
        }
        if script.end.reason == START_ERROR {
            return self.after(wait, move |s| {
                s.table.ended(&id, &script.end, s.clock.now());
            });
        }
        let run = script.run;
        let started = id.clone();
        self.after(wait, move |s| {
            s.table.started(&started, s.clock.now());
        });
        if let Some(run) = run {
            self.after(wait + run, move |s| {
                s.table.ended(&id, &script.end, s.clock.now());
            });
        }
    }

    fn stop(&self, pod: &Arc<PodDesc>, id: &str, grace: Duration, pre_stop: bool) {
        let shared = &self.shared;
        let by = shared.clock.now() + TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
        let mut target: Option<ContainerView> = None;
        shared.table.update(id, |c| {
            let sooner = c.alive() && c.stop_by.is_none_or(|t| by < t);
            if sooner {
                c.stop_by = Some(by);
                target = Some(c.clone());
            }
            sooner
        });
        let Some(c) = target else { return };
        let found = pod.containers().find(|(_, spec)| spec.name == c.name);
        let usual = shared.profile.terminate;
        let none = (Duration::ZERO, OnTerm::Exit(143), usual);
        let (hook, on_term, term) = found.map_or(none, |(kind, spec)| {
            let sleep = spec
                .lifecycle
                .as_ref()
                .and_then(|l| l.pre_stop.as_ref()?.sleep.as_ref().map(|s| s.seconds));
            let hook = Duration::from_secs(u64::try_from(sleep.unwrap_or(0)).unwrap_or(0));
            let script = Script::of(kind, spec);
            (
                if pre_stop { hook } else { Duration::ZERO },
                script.on_term,
                script.term.unwrap_or(usual),
            )
        });
        let term = hook + term;
        let hung = shared.faults.lock().hung.contains(id);
        let (wait, code) = match (on_term, c.state) {
            (_, State::Creating) => (Duration::ZERO, 137),
            (OnTerm::Exit(code), _) if !hung && term <= grace => (term, code),
            _ => (grace + shared.profile.kill, 137),
        };
        let id = id.to_owned();
        self.after(wait, move |s| {
            s.table.ended(&id, &Ended::with_code(code), s.clock.now());
        });
    }
}

impl Runtime for Simulated {
    fn act(&self, pod: &Arc<PodDesc>, action: &Action) {
        let shared = &self.shared;
        match action {
            Action::CreateSandbox => {
                let unmounted =
                    |(kind, c)| Script::of(kind, c).not_created.as_deref() == Some(FAILED_MOUNT);
                let created = shared.table.set_sandbox(pod, SandboxView::Creating);
                if created && !pod.containers().any(unmounted) {
                    let (pod, ip) = (
                        pod.clone(),
                        pod_ip(shared.ips.fetch_add(1, Ordering::Relaxed)),
                    );
                    self.after(shared.profile.sandbox, move |s| {
                        if s.table.view(&pod.uid).sandbox == SandboxView::Creating {
                            s.table.set_sandbox(&pod, SandboxView::Ready { ip });
                        }
                    });
                }
            }
            Action::Start { name, attempt } => self.start(pod, name, *attempt),
            Action::Stop {
                id,
                grace,
                pre_stop,
            } => self.stop(pod, id, *grace, *pre_stop),
            Action::Remove { id } => shared.table.remove(id),
            Action::StopSandbox => {
                if shared.table.set_sandbox(pod, SandboxView::Stopping) {
                    let pod = pod.clone();
                    self.after(shared.profile.cleanup, move |s| {
                        s.table.set_sandbox(&pod, SandboxView::Stopped);
                    });
                }
            }
            Action::DeletePod => {}
        }
    }

    fn view(&self, uid: &str) -> PodView {
        self.shared.table.view(uid)
    }

    fn forget(&self, uid: &str) {
        self.shared.table.forget(uid);
    }

    fn kill(&self, container_id: &str) {
        let id = container_id.to_owned();
        self.after(self.shared.profile.kill, move |s| {
            s.table.ended(&id, &Ended::with_code(137), s.clock.now());
        });
    }

    fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    fn inject(&self, fault: &Fault) -> Result<(), Unsupported> {
        let now = self.shared.clock.now();
        match fault {
            Fault::End { id, ended } => {
                self.shared.table.ended(id, ended, now);
            }
            Fault::Hang { id } => {
                self.shared.faults.lock().hung.insert(id.clone());
                self.shared.table.update(id, |c| {
                    let fresh = c.unhealthy_since.is_none();
                    c.unhealthy_since.get_or_insert(now);
                    fresh
                });
            }
            Fault::SlowStart { by } => self.shared.faults.lock().slow_start = *by,
        }
        Ok(())
    }
}

/// The n-th pod IP: 10.128.0.1 and up, without the first and last of each block of 256.
fn pod_ip(n: u32) -> String {
    let (block, host) = (n / 254, n % 254 + 1);
    format!("10.{}.{}.{host}", 128 + (block >> 8) % 128, block & 0xff)
}
