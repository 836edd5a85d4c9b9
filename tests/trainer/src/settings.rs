//! Settings from the environment, validated once.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use signal_hook::consts::SIGTERM;
use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `PET_NODE_RANK`: number of this member, below `world`.
    pub rank: usize,
    pub world: usize,
    /// `MASTER_ADDR` and `MASTER_PORT`: where rank 0 listens.
    pub master: (String, u16),
    /// `CHECKPOINT_DIR`: a folder that outlives the processes.
    pub checkpoints: PathBuf,
    /// `PROGRESS_FILE`: first step of this attempt and current step. Default: none.
    pub progress: Option<PathBuf>,
    /// `LOCKSTEP_PROGRESS`: the file from which the supervisor reads step and last checkpoint.
    /// `None` without a supervisor.
    pub supervisor: Option<PathBuf>,
    /// `LOCKSTEP_ATTEMPT`: attempt of this member; 0 without a supervisor.
    pub attempt: u64,
    /// `JOURNAL_FILE`: times of start, connection and first step. Default: none.
    pub journal: Option<PathBuf>,
    /// `COMMAND_FILE`: a command to execute before the next step. Default: none.
    pub commands: Option<PathBuf>,
    /// `HEALTH_PORT` and `SICK_FILE`: port for HTTP probes, and the file that makes them fail.
    /// Default: none.
    pub health: Option<(u16, PathBuf)>,
    /// `SAVE_SIGNAL`: number of the signal on which all members save and end, default 15 (SIGTERM).
    pub save_signal: i32,
    /// `STEP_MILLIS`: time of a step, default 50.
    pub step_time: Duration,
    /// `CHECKPOINT_EVERY`: steps between two checkpoints, default 20.
    pub checkpoint_every: u64,
    /// `STEPS`: number of steps. Default: unlimited.
    pub steps: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    #[error("{0} is not set")]
    Missing(&'static str),
    #[error("{name}={value:?} is not {wanted}")]
    Value {
        name: &'static str,
        value: String,
        /// Allowed values.
        wanted: &'static str,
    },
}

impl Settings {
    /// Reads the variables through `lookup`.
    pub fn read(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, Wrong> {
        let text = |name| lookup(name).ok_or(Wrong::Missing(name));
        let world = number(&lookup, "PET_NNODES", "a number above 0", |n| *n > 0)?
            .ok_or(Wrong::Missing("PET_NNODES"))?;
        let rank = number(&lookup, "PET_NODE_RANK", "a number below PET_NNODES", |n| {
            *n < world
        })?;
        let port = number(&lookup, "MASTER_PORT", "a port", |port: &u16| *port > 0)?;
        Ok(Self {
            rank: rank.ok_or(Wrong::Missing("PET_NODE_RANK"))?,
            world,
            master: (
                text("MASTER_ADDR")?,
                port.ok_or(Wrong::Missing("MASTER_PORT"))?,
            ),
            checkpoints: text("CHECKPOINT_DIR")?.into(),
            progress: lookup("PROGRESS_FILE").map(PathBuf::from),
            supervisor: lookup("LOCKSTEP_PROGRESS").map(PathBuf::from),
            attempt: number(&lookup, "LOCKSTEP_ATTEMPT", "a number", |_| true)?.unwrap_or(0),
            journal: lookup("JOURNAL_FILE").map(PathBuf::from),
            commands: lookup("COMMAND_FILE").map(PathBuf::from),
            health: match number(&lookup, "HEALTH_PORT", "a port", |port: &u16| *port > 0)? {
                Some(port) => Some((port, text("SICK_FILE")?.into())),
                None => None,
            },
            save_signal: number(&lookup, "SAVE_SIGNAL", "1 to 31", |n| (1..32).contains(n))?
                .unwrap_or(SIGTERM),
            step_time: Duration::from_millis(
                number(&lookup, "STEP_MILLIS", "a number of milliseconds", |_| true)?.unwrap_or(50),
            ),
            checkpoint_every: number(&lookup, "CHECKPOINT_EVERY", "a number above 0", |n| *n > 0)?
                .unwrap_or(20),
            steps: number(&lookup, "STEPS", "a number of steps", |_| true)?,
        })
    }

    /// True for rank 0, to which all members connect and which writes the checkpoints.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }
}

fn number<N: FromStr>(
    lookup: &impl Fn(&'static str) -> Option<String>,
    name: &'static str,
    wanted: &'static str,
    fits: impl Fn(&N) -> bool,
) -> Result<Option<N>, Wrong> {
    let Some(value) = lookup(name) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(number) if fits(&number) => Ok(Some(number)),
        _ => Err(Wrong::Value {
            name,
            value,
            wanted,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changed: &str, value: Option<&str>) -> Result<Settings, Wrong> {
        Settings::read(|name| {
            if name == changed {
                return value.map(str::to_owned);
            }
            let value = match name {
                "PET_NNODES" => "4",
                "PET_NODE_RANK" => "3",
                "MASTER_ADDR" => "127.0.0.1",
                "MASTER_PORT" => "29500",
                "CHECKPOINT_DIR" => "/checkpoints",
                _ => return None,
            };
            Some(value.to_owned())
        })
    }

    #[test]
    fn what_has_no_default_must_be_set_and_the_rest_need_not() {
        let settings = read("STEPS", None).unwrap();
        assert_eq!(
            (settings.rank, settings.world, settings.steps),
            (3, 4, None)
        );
        for name in [
            "PET_NNODES",
            "PET_NODE_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "CHECKPOINT_DIR",
        ] {
            assert_eq!(read(name, None), Err(Wrong::Missing(name)));
        }
    }

    #[test]
    fn values_out_of_range_are_refused_with_what_is_wanted() {
        for (name, value) in [
            ("PET_NODE_RANK", "4"),
            ("PET_NNODES", "0"),
            ("CHECKPOINT_EVERY", "0"),
        ] {
            assert!(
                matches!(read(name, Some(value)), Err(Wrong::Value { name: n, .. }) if n == name)
            );
        }
        let message = read("STEP_MILLIS", Some("fast")).unwrap_err().to_string();
        assert_eq!(
            message,
            "STEP_MILLIS=\"fast\" is not a number of milliseconds"
        );
    }
}
