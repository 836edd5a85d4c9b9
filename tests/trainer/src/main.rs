//! `lockstep-trainer`: minimal distributed training, for demonstrations with real processes.
//!
//! The members connect at the address in `MASTER_ADDR`, then sum their gradients step by step. Rank
//! 0 writes checkpoints, from which the next attempt continues. If a member dies, all other members
//! exit with 1. On SIGTERM to any member, all stop after the same step with a checkpoint, and exit
//! with 143. Wrong settings exit with 2. If rank 0 finds a member of another attempt, which must
//! never happen, it exits with 99.

mod checkpoint;
mod command;
mod health;
mod journal;
mod settings;
mod state;
mod team;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::flag;

use crate::checkpoint::Occasion;
use crate::journal::{Milestone, note};
use crate::settings::Settings;
use crate::state::State;
use crate::team::{Team, Unmet};

const FAILED: u8 = 1;
const WRONG_SETTINGS: u8 = 2;
/// Exit code if two attempts have met.
const MIXED: u8 = 99;
/// Exit code of a shell for SIGTERM.
const TERMINATED: u8 = 143;

/// Pause of a member after the loss of a peer, like the timeout of collective libraries: the
/// coordinator receives the first death before the other members follow.
const GIVING_UP: Duration = Duration::from_millis(500);

enum End {
    Done,
    Stopped,
}

fn main() -> ExitCode {
    let settings = match Settings::read(|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("trainer: {error}");
            return ExitCode::from(WRONG_SETTINGS);
        }
    };
    match run(&settings) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Stopped) => ExitCode::from(TERMINATED),
        Err(error) => {
            eprintln!("trainer: {error:#}");
            if let Some(Unmet::Mixed { .. }) = error.downcast_ref() {
                return ExitCode::from(MIXED);
            }
            thread::sleep(GIVING_UP);
            ExitCode::from(FAILED)
        }
    }
}

fn run(settings: &Settings) -> Result<End> {
    let stop = Arc::new(AtomicBool::new(false));
    // Before the members are connected, there is nothing to save: the signal ends the process at once.
    let meeting = Arc::new(AtomicBool::new(true));
    let signal = settings.save_signal;
    flag::register_conditional_shutdown(signal, TERMINATED.into(), meeting.clone())
        .context("handle the signal")?;
    flag::register(signal, stop.clone()).context("handle the signal")?;

    if let Some((port, sick)) = &settings.health {
        health::listen(*port, sick.clone())?;
    }
    note(settings, Milestone::Started)?;
    say(&format!(
        "meets a team of {} as rank {}",
        settings.world, settings.rank
    ))?;
    let own = if settings.leads() {
        checkpoint::load(&settings.checkpoints)?
    } else {
        State::default()
    };
    let met = Team::meet(settings, own.to_words());
    if let Err(Unmet::Mixed { .. }) = met {
        note(settings, Milestone::Mixed)?;
    }
    let (mut team, words) = met.context("meet the other members")?;
    note(settings, Milestone::Met)?;
    meeting.store(false, Ordering::SeqCst);
    let state = State::from_words(&words)?;
    train(settings, &mut team, state, &stop)
}

fn train(settings: &Settings, team: &mut Team, mut state: State, stop: &AtomicBool) -> Result<End> {
    let begun_at = state.step;
    say(&format!("begins at step {begun_at}"))?;
    let mut saved = None;
    loop {
        if let Some(file) = &settings.supervisor {
            tell(file, state.step, saved)?;
        }
        if let Some(file) = &settings.progress {
            checkpoint::replace(file, &format!("{begun_at} {}\n", state.step))
                .context("write progress")?;
        }
        if settings.steps.is_some_and(|steps| state.step >= steps) {
            save(settings, &state, Occasion::End)?;
            return Ok(End::Done);
        }
        if let Some(file) = &settings.commands {
            command::obey(file)?;
        }
        // Replaces the computation of a step.
        thread::sleep(settings.step_time);
        let mut words = vec![u64::from(stop.load(Ordering::SeqCst))];
        words.extend(state.gradient(settings.rank));
        let sum = team
            .all_reduce(words)
            .with_context(|| format!("a member is lost after step {}", state.step))?;
        let (stops, gradient) = sum.split_first().context("an empty sum")?;
        state.apply(gradient);
        if state.step == begun_at + 1 {
            note(settings, Milestone::Stepped)?;
        }
        if *stops > 0 {
            save(settings, &state, Occasion::Stop)?;
            if let Some(file) = &settings.supervisor {
                tell(file, state.step, Some(state.step))?;
            }
            return Ok(End::Stopped);
        }
        if state.step.is_multiple_of(settings.checkpoint_every) {
            save(settings, &state, Occasion::Interval)?;
            saved = Some(state.step);
        }
    }
}

/// Reports the step and the last checkpoint to a supervisor.
fn tell(file: &Path, step: u64, saved: Option<u64>) -> Result<()> {
    let saved = saved.map_or(String::new(), |saved| saved.to_string());
    fs::write(file, format!("{step} {saved}\n")).context("tell the supervisor")
}

/// All members have the same state, so one saves it for all.
fn save(settings: &Settings, state: &State, occasion: Occasion) -> Result<()> {
    if settings.leads() {
        checkpoint::save(&settings.checkpoints, state, occasion)?;
        say(&format!("checkpoint at step {}", state.step))?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("standard output")
}
