//! Faults on command: exit, hang, or a memory leak.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::exit;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Size of one allocation of the leak.
const LEAK: usize = 1 << 20;

/// Executes the command in the file and deletes the file: `exit CODE`, `hang` or `leak`.
pub fn obey(file: &Path) -> Result<()> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.context("read the command")?,
    };
    fs::remove_file(file).context("remove the command")?;
    match text.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["exit", code] => exit(code.parse().context("an exit code")?),
        ["hang"] => loop {
            thread::sleep(Duration::from_hours(1));
        },
        ["leak"] => {
            let mut taken: Vec<Vec<u8>> = Vec::new();
            loop {
                // Ones, because pages of zeros cost nothing.
                taken.push(vec![1; LEAK]);
            }
        }
        _ => bail!("unknown command {text:?}"),
    }
}
