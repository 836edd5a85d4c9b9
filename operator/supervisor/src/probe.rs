//! Probes of a container with a supervised child: `lockstep-run probe KIND -- COMMAND`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::child;
use crate::clock;
use crate::log::log_line;
use crate::state;
use lockstep_supervisor::machine::{Moment, Visible};

/// Kind of the kubelet's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Liveness,
    Startup,
    Readiness,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    pub kind: ProbeKind,
    pub folder: PathBuf,
    /// How long a held container stays ready.
    pub ready_while_held: Duration,
    /// How long after each start of the child the liveness probe succeeds.
    pub after_start: Duration,
    pub command: Vec<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
    RunCommand,
}

/// Answers for a held child, or executes the user's probe. Returns the exit code.
pub fn probe(options: &ProbeOptions) -> u8 {
    match verdict(options, state::read(&options.folder), clock::now()) {
        Verdict::Yes => 0,
        Verdict::No => {
            log_line("held");
            1
        }
        Verdict::RunCommand => run_command(&options.command),
    }
}

fn run_command(command: &[OsString]) -> u8 {
    let Some((program, args)) = command.split_first() else {
        return 0;
    };
    let error = Command::new(program).args(args).exec();
    log_line(&format!("{}: {error}", program.display()));
    child::code_of(&error)
}

/// A held child is healthy. It stays ready for `ready_while_held`, so that a restart causes no
/// write of the pod's status. A member is not ready before its first start. A child that has just
/// started is alive, because the kubelet counts delays and the startup probe once per container.
fn verdict(options: &ProbeOptions, state: Option<Visible>, now: Moment) -> Verdict {
    match (state, options.kind) {
        (Some(Visible::Running(since)), ProbeKind::Liveness)
            if now.saturating_sub(since) < options.after_start =>
        {
            Verdict::Yes
        }
        (None | Some(Visible::Running(_)), _) => Verdict::RunCommand,
        (Some(Visible::Starting), ProbeKind::Readiness) => Verdict::No,
        (Some(Visible::Held(since)), ProbeKind::Readiness)
            if now.saturating_sub(since) > options.ready_while_held =>
        {
            Verdict::No
        }
        (Some(Visible::Starting | Visible::Held(_)), _) => Verdict::Yes,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ProbeKind, ProbeOptions, Verdict, verdict};
    use lockstep_supervisor::machine::Visible;

    #[test]
    fn held_members_are_alive_and_ready_for_a_while() {
        let secs = Duration::from_secs;
        let decide = |kind, state| verdict(&options(kind), state, secs(100));
        let running = Visible::Running(secs(70));
        for kind in [ProbeKind::Liveness, ProbeKind::Startup] {
            assert_eq!(decide(kind, Some(Visible::Starting)), Verdict::Yes);
            assert_eq!(decide(kind, Some(Visible::Held(secs(1)))), Verdict::Yes);
            assert_eq!(decide(kind, Some(running)), Verdict::RunCommand);
            assert_eq!(
                decide(kind, None),
                Verdict::RunCommand,
                "without a supervisor the probe is the user's"
            );
        }
        let ready = |state| decide(ProbeKind::Readiness, Some(state));
        assert_eq!(ready(Visible::Starting), Verdict::No, "it never was ready");
        assert_eq!(ready(Visible::Held(secs(90))), Verdict::Yes);
        assert_eq!(ready(Visible::Held(secs(89))), Verdict::No);
        assert_eq!(
            ready(Visible::Held(secs(101))),
            Verdict::Yes,
            "written after this probe has read the clock"
        );
        assert_eq!(ready(running), Verdict::RunCommand);
    }

    #[test]
    fn a_child_that_has_just_started_is_alive() {
        let secs = Duration::from_secs;
        let decide = |kind, since| {
            let state = Some(Visible::Running(secs(since)));
            verdict(&options(kind), state, secs(100))
        };
        assert_eq!(decide(ProbeKind::Liveness, 71), Verdict::Yes);
        assert_eq!(decide(ProbeKind::Liveness, 70), Verdict::RunCommand);
        assert_eq!(decide(ProbeKind::Startup, 100), Verdict::RunCommand);
        assert_eq!(decide(ProbeKind::Readiness, 100), Verdict::RunCommand);
    }

    fn options(kind: ProbeKind) -> ProbeOptions {
        ProbeOptions {
            kind,
            folder: "/lockstep".into(),
            ready_while_held: Duration::from_secs(10),
            after_start: Duration::from_secs(30),
            command: Vec::new(),
        }
    }
}
