use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use chrono::DateTime;
use lockstep_api::restart_order::{SavePolicyOrder, SaveRequestOrder};
use lockstep_node::Saved;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::advance;

use super::*;
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::{SandboxView, State};

struct Rig {
    runtime: Simulated,
    pod: Arc<PodDesc>,
    _changes: mpsc::UnboundedReceiver<Changed>,
}

fn rig(container: &serde_json::Value) -> Rig {
    let (tx, changes) = mpsc::unbounded_channel();
    let clock = Clock::starting_at(DateTime::UNIX_EPOCH);
    let spec = serde_json::from_value(json!({"containers": [container]})).unwrap();
    let pod = Arc::new(PodDesc {
        uid: "u".into(),
        spec,
        ..PodDesc::default()
    });
    let runtime = Simulated::new(
        "n",
        Table::new(0, tx),
        LatencyProfile::measured(),
        clock,
        Arc::new(AtomicU32::new(0)),
    );
    Rig {
        runtime,
        pod,
        _changes: changes,
    }
}

impl Rig {
    /// Lets the program of the supervisor begin its first attempt.
    fn begin(&self, checkpoint: Option<SavePolicyOrder>) {
        self.runtime.link(true);
        let says = |command| self.runtime.command("u", &command);
        says(SupervisorCommand::Hold { attempt: 1 });
        says(SupervisorCommand::Release {
            attempt: 1,
            coordinator: None,
            peers: Vec::new(),
            progress: None,
            checkpoint,
        });
    }

    fn act(&self, action: &Action) {
        self.runtime.act(&self.pod, action);
    }

    async fn running(&self) -> String {
        self.act(&Action::CreateSandbox);
        pass(LatencyProfile::measured().sandbox).await;
        self.act(&Action::Start {
            name: "c".into(),
            attempt: 0,
        });
        pass(LatencyProfile::measured().image_pull + LatencyProfile::measured().start).await;
        let view = self.runtime.view("u");
        assert!(matches!(view.sandbox, SandboxView::Ready { .. }));
        assert!(matches!(view.containers[0].state, State::Running { .. }));
        view.containers[0].id.clone()
    }

    fn end(&self, id: &str, code: i32) {
        self.runtime
            .inject(&Fault::End {
                id: id.into(),
                ended: Ended::with_code(code),
            })
            .unwrap();
    }

    fn code(&self) -> Option<i32> {
        match self.runtime.view("u").containers.last()?.state {
            State::Exited { exit_code, .. } => Some(exit_code),
            _ => None,
        }
    }
}

/// Advances the paused time, and lets all due work run.
async fn pass(time: Duration) {
    tokio::task::yield_now().await;
    advance(time).await;
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_is_pulled_once_per_node() {
    let rig = rig(&json!({"name": "c", "image": "i"}));
    let id = rig.running().await;
    rig.end(&id, 1);
    rig.act(&Action::Start {
        name: "c".into(),
        attempt: 1,
    });
    pass(LatencyProfile::measured().start).await;
    assert!(matches!(
        rig.runtime.view("u").containers[1].state,
        State::Running { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn sigterm_ends_a_program_with_its_own_code_and_sigkill_one_that_ignores_it() {
    for (env, wait, code) in [
        (json!([]), Duration::from_millis(100), 143),
        (
            json!([{"name": "HOLLOW_ON_TERM", "value": "0"}]),
            Duration::from_millis(100),
            0,
        ),
        (
            json!([{"name": "HOLLOW_ON_TERM", "value": "ignore"}]),
            Duration::from_millis(30_034),
            137,
        ),
    ] {
        let rig = rig(&json!({"name": "c", "image": "i", "env": env}));
        let id = rig.running().await;
        rig.act(&Action::Stop {
            id,
            grace: Duration::from_secs(30),
            pre_stop: true,
        });
        pass(wait.checked_sub(Duration::from_millis(1)).unwrap()).await;
        assert_eq!(rig.code(), None);
        pass(Duration::from_millis(1)).await;
        assert_eq!(rig.code(), Some(code));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_sleep_comes_before_sigterm_unless_it_is_skipped() {
    let hook =
        json!({"name": "c", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}});
    for (pre_stop, expected) in [(true, None), (false, Some(143))] {
        let rig = rig(&hook);
        let id = rig.running().await;
        rig.act(&Action::Stop {
            id,
            grace: Duration::from_secs(30),
            pre_stop,
        });
        pass(Duration::from_secs(5)).await;
        assert_eq!(rig.code(), expected);
        pass(Duration::from_millis(100)).await;
        assert_eq!(rig.code(), Some(143));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hung_program_ignores_sigterm_and_fails_its_probes() {
    let rig = rig(&json!({"name": "c", "image": "i"}));
    let id = rig.running().await;
    rig.runtime.inject(&Fault::Hang { id: id.clone() }).unwrap();
    assert!(
        rig.runtime.view("u").containers[0]
            .unhealthy_since
            .is_some()
    );
    rig.act(&Action::Stop {
        id,
        grace: Duration::from_secs(30),
        pre_stop: true,
    });
    pass(Duration::from_secs(30)).await;
    assert_eq!(rig.code(), None);
    pass(Duration::from_millis(34)).await;
    assert_eq!(rig.code(), Some(137));
}

#[tokio::test(start_paused = true)]
async fn the_agent_sees_the_exit_of_a_container_that_was_removed_before_it_looked_once() {
    let rig = rig(&json!({"name": "c", "image": "i"}));
    let id = rig.running().await;
    rig.end(&id, 42);
    rig.act(&Action::Remove { id });
    let codes = || {
        let seen = rig.runtime.table().look(|_| true);
        seen[0]
            .containers
            .iter()
            .map(|c| c.view.state.clone())
            .collect::<Vec<_>>()
    };
    assert!(matches!(codes()[..], [State::Exited { exit_code: 42, .. }]));
    assert!(codes().is_empty());
}

/// The supervisor passes a second signal on at once.
#[tokio::test(start_paused = true)]
async fn a_stop_that_is_repeated_a_moment_sooner_sends_no_second_signal() {
    let rig = rig(&json!({"name": "c", "image": "i",
        "command": ["/lockstep/lockstep-run", "exec", "--", "train"]}));
    let id = rig.running().await;
    let policy = SavePolicyOrder {
        hold_stop_seconds: Some(25),
        ..SavePolicyOrder::default()
    };
    rig.begin(Some(policy));
    for millis in [30_000, 29_980] {
        rig.act(&Action::Stop {
            id: id.clone(),
            grace: Duration::from_millis(millis),
            pre_stop: true,
        });
        pass(Duration::from_millis(10)).await;
    }
    // A stop signal without a request is held back for three seconds.
    for _ in 0..4 {
        pass(Duration::from_millis(500)).await;
    }
    assert_eq!(rig.code(), None);
}

#[tokio::test(start_paused = true)]
async fn a_supervised_program_answers_a_request_for_a_checkpoint_as_its_environment_says() {
    for (reaction, expected) in [
        (Some("save"), (Some(Saved::Step(1)), None)),
        (Some("143"), (Some(Saved::NotYet), Some(143))),
        (Some("ignore"), (Some(Saved::NotYet), None)),
        (None, (Some(Saved::Unsupported), None)),
    ] {
        let env = json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": reaction},
            {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "5000"},
            {"name": "HOLLOW_STEP_MILLIS", "value": "1000"}, {"name": "HOLLOW_HANGS_AFTER", "value": "1"}]);
        let rig = rig(&json!({"name": "c", "image": "i", "env": env,
            "command": ["/lockstep/lockstep-run", "exec", "--", "train"]}));
        rig.running().await;
        let says = |command| rig.runtime.command("u", &command);
        let state = || rig.runtime.supervisor("u").unwrap();
        rig.begin(None);
        pass(Duration::from_secs(1)).await;
        let request = SaveRequestOrder {
            id: "a".into(),
            deadline: DateTime::from_timestamp(100, 0).unwrap(),
            ..SaveRequestOrder::default()
        };
        says(SupervisorCommand::Checkpoint {
            attempt: 1,
            request,
        });
        pass(Duration::from_millis(4999)).await;
        assert_eq!(state().exit, None);
        assert!(!matches!(state().reply.unwrap().saved, Saved::Step(_)));
        pass(Duration::from_millis(1)).await;
        let answer = state().reply.map(|answer| answer.saved);
        let exit = state().exit.map(|exit| exit.code);
        assert_eq!((answer, exit), expected, "{reaction:?}");
    }
}
