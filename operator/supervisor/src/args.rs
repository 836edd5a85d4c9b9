//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::probe::{self, ProbeKind};
use crate::shared_memory::CleanedFiles;
use crate::supervise;
use lockstep_supervisor::machine::{SignalNumber, Waits};
use lockstep_supervisor_protocol::PASSED_SIGNALS;

pub const HELP: &str = "\
lockstep-run: the supervisor inside a training container

Usage:
  lockstep-run init DIR
      Copies this program into DIR. For the init container; DIR is a volume that the training container mounts, too.
  lockstep-run exec [OPTIONS] -- COMMAND [ARG...]
      Starts COMMAND when the agent of the node releases it, stops and starts it again on order, reports how it ends.
  lockstep-run probe liveness|startup|readiness [OPTIONS] -- COMMAND [ARG...]
      Answers a probe of the kubelet while COMMAND of exec is held, and runs this COMMAND otherwise.
  lockstep-run help | version

Options of exec:
  --dir DIR             folder of the socket; default: where this program is
  --keep-env NAME       the child gets NAME as the container has it; may be repeated
  --shm DIR             where leftovers of the child are unlinked; default /dev/shm, nothing with the host's IPC namespace
  --clean-shm WHAT      what is unlinked there: known (files of communication libraries, by name), all, none; default known
  --termination-log FILE
                        its end is the message of an exit; emptied before each start; default /dev/termination-log
  --stop-signal NAME    stop signal of the container; default SIGTERM. SIGINT, SIGQUIT and SIGTERM always stop COMMAND
  --stop-grace SECONDS  time from that signal to SIGKILL if an order stops COMMAND; default 0
  --agent-away SECONDS  after a failure, exits with the child's code if the agent is away so long; default 60
  --manager-away SECONDS
                        the same if no decision comes; default 120
  --complete SECONDS    after exit 0, waits so long for the other members; default 300
  --survivors SECONDS   reports processes that are alive so long after SIGKILL; default 10

Options of probe:
  --dir DIR             as above
  --ready-while-held SECONDS
                        a held container stays ready so long; default 10
  --after-start SECONDS liveness succeeds so long after each start of COMMAND of exec; default 0

Exit codes of exec: that of COMMAND; 128 + number of the signal that ended it; 143 if it exited 0 after SIGTERM; 127 if it
does not exist, 126 if it cannot be executed; 125 if the supervisor itself fails.
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Help,
    Version,
    Init(PathBuf),
    Exec(supervise::SuperviseOptions),
    Probe(probe::ProbeOptions),
}

/// Parses the arguments after the program's name. `home` is the folder of the program.
pub fn parse(args: impl IntoIterator<Item = OsString>, home: PathBuf) -> Result<Call, String> {
    let mut args = args.into_iter();
    let verb = args.next().unwrap_or_default();
    match verb.to_str() {
        Some("help" | "--help" | "-h") => Ok(Call::Help),
        Some("version" | "--version") => Ok(Call::Version),
        Some("init") => match (args.next(), args.next()) {
            (Some(folder), None) => Ok(Call::Init(folder.into())),
            _ => Err("init needs one folder".to_owned()),
        },
        Some("exec") => exec(args, home).map(Call::Exec),
        Some("probe") => probe(args, home).map(Call::Probe),
        _ => Err(format!(
            "no such command: {:?}; see lockstep-run help",
            verb.display()
        )),
    }
}

fn exec(
    mut args: impl Iterator<Item = OsString>,
    home: PathBuf,
) -> Result<supervise::SuperviseOptions, String> {
    let mut options = supervise::SuperviseOptions {
        folder: home,
        command: Vec::new(),
        waits: Waits::default(),
        shared_memory: None,
        cleaned: CleanedFiles::Known,
        termination_log: "/dev/termination-log".into(),
        keep: Vec::new(),
    };
    while let Some(option) = option(&mut args)? {
        match option.to_str().unwrap_or_default() {
            "--dir" => options.folder = value(&option, &mut args)?.into(),
            "--keep-env" => options.keep.push(value(&option, &mut args)?),
            "--shm" => options.shared_memory = Some(value(&option, &mut args)?.into()),
            "--clean-shm" => options.cleaned = cleaned(&option, &mut args)?,
            "--termination-log" => options.termination_log = value(&option, &mut args)?.into(),
            "--stop-signal" => options.waits.stop_signal = signal(&option, &mut args)?,
            "--stop-grace" => options.waits.stop_grace = seconds(&option, &mut args)?,
            "--agent-away" => options.waits.agent_away = seconds(&option, &mut args)?,
            "--manager-away" => options.waits.manager_away = seconds(&option, &mut args)?,
            "--complete" => options.waits.complete = seconds(&option, &mut args)?,
            "--survivors" => options.waits.survivors = seconds(&option, &mut args)?,
            _ => return Err(unknown(&option)),
        }
    }
    options.command = command(args)?;
    Ok(options)
}

fn probe(
    mut args: impl Iterator<Item = OsString>,
    home: PathBuf,
) -> Result<probe::ProbeOptions, String> {
    let kind = args.next().unwrap_or_default();
    let kind = match kind.to_str() {
        Some("liveness") => ProbeKind::Liveness,
        Some("startup") => ProbeKind::Startup,
        Some("readiness") => ProbeKind::Readiness,
        _ => return Err("probe needs liveness, startup or readiness".to_owned()),
    };
    let mut options = probe::ProbeOptions {
        kind,
        folder: home,
        ready_while_held: Duration::from_secs(10),
        after_start: Duration::ZERO,
        command: Vec::new(),
    };
    while let Some(option) = option(&mut args)? {
        match option.to_str().unwrap_or_default() {
            "--dir" => options.folder = value(&option, &mut args)?.into(),
            "--after-start" => options.after_start = seconds(&option, &mut args)?,
            "--ready-while-held" => options.ready_while_held = seconds(&option, &mut args)?,
            _ => return Err(unknown(&option)),
        }
    }
    options.command = command(args)?;
    Ok(options)
}

/// The next option, or `None` at the mandatory `--`.
fn option(args: &mut impl Iterator<Item = OsString>) -> Result<Option<OsString>, String> {
    let option = args.next().ok_or("-- and a command are missing")?;
    Ok((option != "--").then_some(option))
}

fn value(option: &OsStr, args: &mut impl Iterator<Item = OsString>) -> Result<OsString, String> {
    args.next()
        .ok_or_else(|| format!("{} needs a value", option.display()))
}

fn seconds(option: &OsStr, args: &mut impl Iterator<Item = OsString>) -> Result<Duration, String> {
    let text = value(option, args)?;
    let seconds = text
        .to_str()
        .and_then(|text| Duration::try_from_secs_f64(text.parse().ok()?).ok());
    seconds.ok_or_else(|| {
        format!(
            "{} needs seconds, not {:?}",
            option.display(),
            text.display()
        )
    })
}

fn signal(
    option: &OsStr,
    args: &mut impl Iterator<Item = OsString>,
) -> Result<SignalNumber, String> {
    let name = value(option, args)?;
    let known = PASSED_SIGNALS.iter().find(|(known, _)| name == *known);
    known.map(|(_, number)| *number).ok_or_else(|| {
        let names = PASSED_SIGNALS.map(|(name, _)| name).join(", ");
        format!("{} needs one of {names}", option.display())
    })
}

fn cleaned(
    option: &OsStr,
    args: &mut impl Iterator<Item = OsString>,
) -> Result<CleanedFiles, String> {
    match value(option, args)?.to_str() {
        Some("known") => Ok(CleanedFiles::Known),
        Some("all") => Ok(CleanedFiles::All),
        Some("none") => Ok(CleanedFiles::None),
        _ => Err(format!("{} needs known, all or none", option.display())),
    }
}

fn command(args: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let command: Vec<OsString> = args.collect();
    if command.is_empty() {
        Err("there is no command after --".to_owned())
    } else {
        Ok(command)
    }
}

fn unknown(option: &OsStr) -> String {
    format!(
        "no such option: {:?}; see lockstep-run help",
        option.display()
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{Call, HELP, parse};
    use crate::probe::ProbeKind;
    use crate::shared_memory::CleanedFiles;
    use lockstep_supervisor::machine::Waits;

    fn call(line: &str) -> Result<Call, String> {
        parse(
            line.split_whitespace().map(OsString::from),
            PathBuf::from("/lockstep"),
        )
    }

    #[test]
    fn a_command_is_taken_as_it_is() {
        let Ok(Call::Exec(options)) = call("exec -- python --dir x -- train.py") else {
            panic!("no exec");
        };
        assert_eq!(options.command, ["python", "--dir", "x", "--", "train.py"]);
        assert_eq!(
            (&*options.folder, options.waits),
            (Path::new("/lockstep"), Waits::default())
        );
        assert_eq!(options.shared_memory, None);
        assert_eq!(options.cleaned, CleanedFiles::Known);
    }

    #[test]
    fn options_are_read() {
        let line = "exec --dir /d --stop-signal SIGUSR1 --stop-grace 9 --keep-env A --keep-env B --shm /s --clean-shm all --agent-away 0.5 --manager-away 2 --complete 3 \
                    --survivors 4 -- c";
        let Ok(Call::Exec(options)) = call(line) else {
            panic!("no exec");
        };
        let (millis, secs) = (Duration::from_millis, Duration::from_secs);
        let waits = Waits {
            stop_signal: 10,
            stop_grace: secs(9),
            agent_away: millis(500),
            manager_away: secs(2),
            complete: secs(3),
            survivors: secs(4),
        };
        assert_eq!((&*options.folder, options.waits), (Path::new("/d"), waits));
        assert_eq!(options.keep, ["A", "B"]);
        assert_eq!(options.shared_memory.as_deref(), Some(Path::new("/s")));
        assert_eq!(options.cleaned, CleanedFiles::All);

        let Ok(Call::Probe(options)) =
            call("probe readiness --dir /d --ready-while-held 1 -- cat /healthy")
        else {
            panic!("no probe");
        };
        assert_eq!(
            (options.kind, &*options.folder),
            (ProbeKind::Readiness, Path::new("/d"))
        );
        assert_eq!(
            (options.ready_while_held, options.command.len()),
            (secs(1), 2)
        );
        assert_eq!(call("init /d"), Ok(Call::Init("/d".into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("", "no such command"),
            ("run -- x", "no such command"),
            ("init", "one folder"),
            ("init a b", "one folder"),
            ("exec", "-- and a command"),
            ("exec --", "no command"),
            ("exec --dir", "needs a value"),
            ("exec --wait 3 -- x", "no such option"),
            ("exec --agent-away soon -- x", "needs seconds"),
            ("exec --agent-away -1 -- x", "needs seconds"),
            ("probe -- x", "liveness, startup or readiness"),
            ("exec --stop-signal SIGRTMIN+3 -- x", "needs one of SIGHUP"),
            ("exec --clean-shm some -- x", "known, all or none"),
            ("probe liveness --shm /s -- x", "no such option"),
        ] {
            let error = call(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn help_names_the_defaults() {
        let Waits {
            stop_grace,
            agent_away,
            manager_away,
            complete,
            survivors,
            ..
        } = Waits::default();
        for (option, default) in [
            ("--stop-grace", stop_grace),
            ("--agent-away", agent_away),
            ("--manager-away", manager_away),
            ("--complete", complete),
            ("--survivors", survivors),
        ] {
            let text = HELP.split(option).nth(1).unwrap();
            let said = text
                .split("default ")
                .nth(1)
                .unwrap()
                .split(['\n', ';'])
                .next()
                .unwrap();
            assert_eq!(said, default.as_secs().to_string(), "{option}");
        }
    }
}
