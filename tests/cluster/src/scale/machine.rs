//! Resource use of processes.

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc` (`USER_HZ`, the same on all Linux).
const TICKS: f64 = 100.0;

/// Resource use of a process so far.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Processor time in seconds.
    pub cpu: f64,
    /// Current resident memory in MB.
    pub resident: f64,
    /// Maximum resident memory in MB.
    pub most_resident: f64,
}

/// Reads `/proc`.
pub fn taken(pid: u32) -> Result<Taken> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in brackets, can contain any characters.
    let (_, fields) = stat.rsplit_once(')').context("stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("stat")?.parse()?) };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let megabytes = |key: &str| -> Result<f64> {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        let kilobytes = line.and_then(|l| l.split_whitespace().next());
        Ok(kilobytes.context("status")?.parse::<f64>()? / 1024.0)
    };
    Ok(Taken {
        cpu: (ticks(11)? + ticks(12)?) / TICKS,
        resident: megabytes("VmRSS:")?,
        most_resident: megabytes("VmHWM:")?,
    })
}

/// Load averages.
pub fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}
