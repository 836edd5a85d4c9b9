//! Colours of states in dashboards and pictures: those of the page of `kubectl lockstep dashboard`.

use anyhow::{Context, Result};

/// Colours by name.
pub(crate) const COLOURS: [(&str, &str); 10] = [
    ("running", "#2f6fb6"),
    ("starting", "#8fc4ea"),
    ("restarting", "#d9691a"),
    ("leaving", "#a8529a"),
    ("reserved", "#e3bd33"),
    ("free", "#e3e8ed"),
    ("unusable", "#59636e"),
    ("other", "#a5afb9"),
    ("bad", "#c0302b"),
    ("good", "#2c7a58"),
];

/// Sets of series, each with its colour.
const SETS: [(&str, &str); 9] = [
    (
        "accelerators",
        "held running, leaving leaving, reserved reserved, unusable unusable, free free",
    ),
    (
        "idle",
        "reserved reserved, fragmented restarting, noDemand free, unusable unusable",
    ),
    (
        "phases",
        "New free, Pending reserved, Starting starting, Running running, Restarting restarting, \
         Preempting leaving, Suspended other, Stalled bad, Failed bad, Succeeded good",
    ),
    (
        "conditions",
        "Admitted reserved, Ready running, Reconciling starting, Restarting restarting, \
         RestartsInPlace other, DisruptionTarget leaving, Suspended other, Stalled bad, Failed bad, Complete good",
    ),
    (
        "incident",
        "detect other, decide starting, stop restarting, barrier reserved, start running",
    ),
    ("members", "members other, ready running, succeeded good"),
    ("agents", "ready running, not_ready reserved"),
    (
        "outcomes",
        "Saved good, Ended other, Withdrawn free, TimedOut bad, Unsupported restarting",
    ),
    (
        "results",
        "success running, requeue starting, error bad, stopped good, failed bad",
    ),
];

/// The value of a colour.
pub(crate) fn colour(name: &str) -> Result<&'static str> {
    let found = COLOURS.iter().find(|(colour, _)| *colour == name);
    found
        .map(|(_, hex)| *hex)
        .with_context(|| format!("no colour {name}"))
}

/// The series of a set with their colours.
pub(crate) fn set(wanted: Option<&str>) -> Result<Vec<(&'static str, &'static str)>> {
    let Some(wanted) = wanted else {
        return Ok(Vec::new());
    };
    let found = SETS.iter().find(|(name, _)| *name == wanted);
    let (_, pairs) = found.with_context(|| format!("no set {wanted}"))?;
    let pairs = pairs.split(", ").map(|pair| {
        let (series, name) = pair.split_once(' ').context("a colour")?;
        Ok((series, colour(name)?))
    });
    pairs.collect()
}
