//! Metrics of the process, named as in Prometheus' client libraries.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::encode::single;

pub fn register(registry: &mut Registry) {
    let (version, commit) = (lockstep_version::VERSION, lockstep_version::COMMIT);
    let build = Info::new([("version", version), ("commit", commit)]);
    registry.register("lockstep_build", "Version and commit of the manager", build);
    registry.register_collector(Box::new(ProcessMetrics));
}

/// Reads `/proc` at each scrape, if it exists.
#[derive(Debug)]
struct ProcessMetrics;

#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessUse {
    /// Seconds.
    cpu: f64,
    /// Seconds since the epoch.
    started: f64,
    /// Bytes.
    resident: i64,
}

impl ProcessUse {
    /// Parses `/proc/self/stat` and `btime` of `/proc/stat` (proc(5)).
    fn parse(stat: &str, system: &str, ticks_per_second: f64, page: i64) -> Option<Self> {
        // The program name in parentheses can contain any character.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        // proc(5) numbers fields from 1. `fields` starts with the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let booted = system.lines().find_map(|l| l.strip_prefix("btime "))?;
        Some(Self {
            cpu: (field(14)? + field(15)?) / ticks_per_second,
            started: booted.trim().parse::<f64>().ok()? + field(22)? / ticks_per_second,
            resident: field(24)? as i64 * page,
        })
    }

    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Self::parse(&stat, &system, ticks, rustix::param::page_size() as i64)
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(used) = ProcessUse::read() else {
            return Ok(());
        };
        let cpu = encoder.encode_descriptor(
            "process_cpu_seconds",
            "Processor time used",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(used.cpu).encode(cpu)?;
        single(
            &mut encoder,
            "process_resident_memory_bytes",
            "Memory resident",
            used.resident,
        )?;
        single(
            &mut encoder,
            "process_start_time_seconds",
            "When the process started, in seconds since the epoch",
            used.started,
        )?;
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        single(
            &mut encoder,
            "process_open_fds",
            "Open file descriptors",
            open as i64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_spaces_and_brackets_in_its_name_is_read() {
        let stat =
            "42 (a ) name) S 1 1 1 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1000 2000000 300 1";
        let used = ProcessUse::parse(
            stat,
            "cpu 1 2\nbtime 1795000000\nprocesses 3\n",
            100.0,
            4096,
        );
        let expected = ProcessUse {
            cpu: 2.0,
            started: 1_795_000_010.0,
            resident: 300 * 4096,
        };
        assert_eq!(used, Some(expected));
    }

    #[test]
    fn the_build_is_shown_with_its_version_and_the_commit_that_git_knows() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find(|l| l.starts_with("lockstep_build_info{"));
        let (version, commit) = (lockstep_version::VERSION, lockstep_version::COMMIT);
        let expected =
            format!("lockstep_build_info{{version=\"{version}\",commit=\"{commit}\"}} 1");
        assert_eq!(line, Some(expected.as_str()), "{text}");
    }

    #[test]
    fn this_process_has_started_and_uses_memory() {
        let used = ProcessUse::read().unwrap();
        assert!(
            used.started > 1_000_000_000.0 && used.resident > 0,
            "{used:?}"
        );
    }
}
