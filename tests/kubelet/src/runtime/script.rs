//! Behaviour of a simulated container's program, from its environment.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

use super::table::Ended;
use crate::model::Kind;

/// The runtime's reason for the end of a program that could not be started.
pub const START_ERROR: &str = "StartError";

/// Reason of a container that is not created because a volume of its pod cannot be mounted.
pub const FAILED_MOUNT: &str = "FailedMount";

/// Behaviour of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Running time. `None` means until it is stopped. `HOLLOW_RUN_MILLIS`; init containers end at
    /// once by default.
    pub run: Option<Duration>,
    /// Kind of its end: `HOLLOW_EXIT`, and `HOLLOW_REASON` for `OOMKilled` and `StartError`, the
    /// end of a program that cannot be started.
    pub end: Ended,
    /// Reason why its container cannot be created, as in the status of a waiting container.
    /// `HOLLOW_NOT_CREATED`; with [`FAILED_MOUNT`] the sandbox is never ready either.
    pub not_created: Option<String>,
    /// Period of the steps that it reports to its supervisor. `None` without reports.
    /// `HOLLOW_STEP_MILLIS`.
    pub step: Option<Duration>,
    /// The step after which its first attempt hangs. `HOLLOW_HANGS_AFTER`.
    pub hangs_after: Option<u64>,
    /// Reaction to SIGTERM. `HOLLOW_ON_TERM`: an exit code, or `ignore`.
    pub on_term: OnTerm,
    /// Duration of that reaction. `HOLLOW_TERM_MILLIS`; as on a real node by default.
    pub term: Option<Duration>,
    /// Reaction to a request for a checkpoint. `HOLLOW_ON_CHECKPOINT`: `save`, an exit code, or
    /// `ignore`. Without it the program has no handler.
    pub on_checkpoint: Option<OnCheckpoint>,
    /// Duration of that reaction. `HOLLOW_CHECKPOINT_MILLIS`; zero by default.
    pub checkpoint: Duration,
}

/// Reaction of a program to a request for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCheckpoint {
    /// Saves its current step and continues.
    Save,
    /// Saves and exits with this code.
    Exit(i32),
    /// Continues without a checkpoint.
    Ignore,
}

/// Reaction of a program to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    /// Exits with this code.
    Exit(i32),
    /// Continues until it is killed.
    Ignore,
}

impl Script {
    /// Reads the container's environment. Malformed values count as absent.
    pub fn of(kind: Kind, container: &Container) -> Self {
        let value = |name: &str| {
            let all = container.env.iter().flatten();
            all.into_iter()
                .find(|e| e.name == name)
                .and_then(|e| e.value.as_deref())
        };
        let millis = |name: &str| Some(Duration::from_millis(value(name)?.parse().ok()?));
        let code = value("HOLLOW_EXIT").and_then(|v| v.parse().ok());
        let mut end = Ended::with_code(code.unwrap_or(0));
        match value("HOLLOW_REASON") {
            Some("OOMKilled") => end.reason = "OOMKilled",
            Some(START_ERROR) => end.reason = START_ERROR,
            _ => {}
        }
        let run = millis("HOLLOW_RUN_MILLIS");
        Self {
            not_created: value("HOLLOW_NOT_CREATED").map(str::to_owned),
            run: run.or((kind == Kind::Init).then_some(Duration::ZERO)),
            end,
            step: millis("HOLLOW_STEP_MILLIS"),
            hangs_after: value("HOLLOW_HANGS_AFTER").and_then(|v| v.parse().ok()),
            term: millis("HOLLOW_TERM_MILLIS"),
            on_checkpoint: value("HOLLOW_ON_CHECKPOINT").and_then(|v| match v {
                "save" => Some(OnCheckpoint::Save),
                "ignore" => Some(OnCheckpoint::Ignore),
                code => code.parse().ok().map(OnCheckpoint::Exit),
            }),
            checkpoint: millis("HOLLOW_CHECKPOINT_MILLIS").unwrap_or_default(),
            on_term: match value("HOLLOW_ON_TERM") {
                Some("ignore") => OnTerm::Ignore,
                other => OnTerm::Exit(other.and_then(|v| v.parse().ok()).unwrap_or(143)),
            },
        }
    }
}
