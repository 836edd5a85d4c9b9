//! How the program of a simulated container behaves, told by its environment.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

use crate::model::Kind;

/// Behaviour of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// How long it runs; None means until it is stopped. `HOLLOW_RUN_MILLIS`; init containers end
    /// at once by default.
    pub run: Option<Duration>,
    /// Its exit code when it ends by itself. `HOLLOW_EXIT`.
    pub exit: i32,
    /// What it does on SIGTERM. `HOLLOW_ON_TERM`: an exit code, or `ignore`.
    pub on_term: OnTerm,
}

/// What a program does on SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    /// Exits with this code.
    Exit(i32),
    /// Goes on until it is killed.
    Ignore,
}

impl Script {
    /// Reads the container's environment; what is malformed counts as absent.
    pub fn of(kind: Kind, container: &Container) -> Self {
        let value = |name: &str| {
            let all = container.env.iter().flatten();
            all.into_iter()
                .find(|e| e.name == name)
                .and_then(|e| e.value.as_deref())
        };
        let run = value("HOLLOW_RUN_MILLIS")
            .and_then(|v| v.parse().ok())
            .map(Duration::from_millis);
        Self {
            run: run.or((kind == Kind::Init).then_some(Duration::ZERO)),
            exit: value("HOLLOW_EXIT")
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
            on_term: match value("HOLLOW_ON_TERM") {
                Some("ignore") => OnTerm::Ignore,
                other => OnTerm::Exit(other.and_then(|v| v.parse().ok()).unwrap_or(143)),
            },
        }
    }
}
