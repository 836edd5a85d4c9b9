//! The pretended runtime in tokio's time.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::later::Later;
<<<<<<< HEAD
use super::pretend::{Effect, Pretend};
use super::table::Table;
=======
use super::script::{FAILED_MOUNT, OnTerm, START_ERROR, Script};
use super::table::{Ended, Table};
>>>>>>> wt-traces
use super::{Fault, Runtime, Unsupported};
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::{Action, PodDesc, PodView};

/// The simulated runtime of one node.
#[derive(Debug)]
pub struct Simulated {
    runtime: Arc<Pretend>,
    clock: Clock,
    /// Everything under way; dropping the runtime ends it.
    later: Later,
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
        Self {
            runtime: Arc::new(Pretend::new(node_name, table, profile, ips)),
            clock,
            later: Later::default(),
        }
    }

    fn after(&self, effects: impl IntoIterator<Item = (Duration, Effect)>) {
        for (wait, effect) in effects {
            let (runtime, clock) = (self.runtime.clone(), self.clock);
            self.later
                .after(wait, move || runtime.apply(&effect, clock.now()));
        }
<<<<<<< HEAD
=======
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
>>>>>>> wt-traces
    }
}

impl Runtime for Simulated {
    fn act(&self, pod: &Arc<PodDesc>, action: &Action) {
<<<<<<< HEAD
        self.after(self.runtime.act(pod, action, self.clock.now()));
=======
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
>>>>>>> wt-traces
    }

    fn view(&self, uid: &str) -> PodView {
        self.runtime.table().view(uid)
    }

    fn forget(&self, uid: &str) {
        self.runtime.table().forget(uid);
    }

    fn kill(&self, container_id: &str) {
        self.after([self.runtime.kill(container_id)]);
    }

    fn table(&self) -> &Arc<Table> {
        self.runtime.table()
    }

    fn inject(&self, fault: &Fault) -> Result<(), Unsupported> {
        self.runtime.inject(fault, self.clock.now());
        Ok(())
    }
}
