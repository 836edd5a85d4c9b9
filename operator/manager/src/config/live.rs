//! Applies the preemption settings and the log level of the configuration file at run time.
//! Evictions can thus be stopped at once, and problems examined without a restart.
//!
//! The file is a mounted `ConfigMap`, which the kubelet replaces by switching a symbolic link. So
//! the file is polled and compared. An invalid file changes nothing.

use std::time::Duration;

use lockstep_common::log::{LogHandle, LogLevel};
use lockstep_scheduler::SchedulerSettings;
use lockstep_scheduler::config::PreemptionConfig;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{Config, ConfigError, ConfigSource};

/// Polling interval. The kubelet takes up to a minute to update the file.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TakenOver {
    preemption: bool,
    log_level: bool,
    /// True if settings that need a restart have changed.
    restart: bool,
}

fn take_over(
    source: &ConfigSource,
    config: &mut Config,
    text: &str,
) -> Result<TakenOver, ConfigError> {
    let new = source.parse(text)?;
    let preemption = config.scheduler.preemption != new.scheduler.preemption;
    config
        .scheduler
        .preemption
        .clone_from(&new.scheduler.preemption);
    let log_level = config.log_level != new.log_level;
    config.log_level.clone_from(&new.log_level);
    let restart = *config != new;
    Ok(TakenOver {
        preemption,
        log_level,
        restart,
    })
}

/// Follows the configuration file, if there is one. `config` and `text` are its parsed and original
/// content at start.
pub async fn follow(
    source: ConfigSource,
    mut text: String,
    mut config: Config,
    preemption: watch::Sender<PreemptionConfig>,
    log: LiveLog,
) {
    let Some(path) = &source.file else { return };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut readable = true;
    loop {
        ticks.tick().await;
        let read = source.text(tokio::fs::read_to_string(path).await);
        if let Err(error) = &read
            && readable
        {
            error!(path = %path.display(), %error, "the configuration cannot be read: that of before is in force");
        }
        readable = read.is_ok();
        let Some(new) = read.ok().filter(|new| *new != text) else {
            continue;
        };
        match take_over(&source, &mut config, &new) {
            Ok(taken) => {
                if taken.preemption {
                    let in_force = config.scheduler.preemption.clone();
                    info!(
                        enabled = in_force.enabled,
                        "scheduler.preemption has changed"
                    );
                    preemption.send_replace(in_force);
                }
                if taken.log_level {
                    log.follow(&config.log_level);
                }
                if taken.restart {
                    warn!(
                        "the configuration has changed beyond scheduler.preemption and logLevel: the rest is taken over at the next start"
                    );
                }
            }
            Err(error) => {
                error!(%error, "the configuration is refused: that of before is in force");
            }
        }
        text = new;
    }
}

#[derive(Clone, Debug)]
pub struct LiveLog {
    log: LogHandle,
    /// Level if the configuration names none.
    otherwise: LogLevel,
}

impl LiveLog {
    pub fn new(log: LogHandle, otherwise: LogLevel, configured: &str) -> Self {
        let live = Self { log, otherwise };
        if !configured.is_empty() {
            live.follow(configured);
        }
        live
    }

    fn follow(&self, configured: &str) {
        let level = configured
            .parse()
            .unwrap_or_else(|_| self.otherwise.clone());
        match self.log.set(&level) {
            Ok(()) => info!(%level, "logLevel is in force"),
            Err(error) => error!(%error, "logLevel cannot be changed"),
        }
    }
}

#[derive(Debug)]
pub struct LiveSettings {
    config: Config,
    own: [String; 2],
    preemption: watch::Receiver<PreemptionConfig>,
    keeps_nominations: watch::Receiver<bool>,
}

impl LiveSettings {
    /// Follows the preemption settings, and whether kube-scheduler keeps nominations of other
    /// controllers.
    pub fn new(
        config: Config,
        own: [String; 2],
        preemption: watch::Receiver<PreemptionConfig>,
        keeps_nominations: watch::Receiver<bool>,
    ) -> Self {
        Self {
            config,
            own,
            preemption,
            keeps_nominations,
        }
    }

    /// Fixed settings, for a manager without its own namespaces.
    pub fn unchanging(config: Config) -> Self {
        let (_, preemption) = watch::channel(config.scheduler.preemption.clone());
        let (_, keeps_nominations) = watch::channel(true);
        let own = [String::new(), String::new()];
        Self::new(config, own, preemption, keeps_nominations)
    }

    pub fn take(&mut self) -> Option<SchedulerSettings> {
        // Without a sender, the value cannot change.
        let preemption = self.preemption.has_changed().unwrap_or(false);
        let nominations = self.keeps_nominations.has_changed().unwrap_or(false);
        if !preemption && !nominations {
            return None;
        }
        self.keeps_nominations.mark_unchanged();
        let now = self.preemption.borrow_and_update().clone();
        self.config.scheduler.preemption = now;
        Some(self.settings())
    }

    /// The settings at the last call of [`Self::take`].
    pub fn settings(&self) -> SchedulerSettings {
        let [manager, agents] = &self.own;
        SchedulerSettings {
            keeps_nominations: *self.keeps_nominations.borrow(),
            ..self.config.scheduler_settings([manager, agents])
        }
    }

    /// Returns after a change since the last call of [`Self::take`].
    pub async fn changed(&self) {
        let (mut preemption, mut nominations) =
            (self.preemption.clone(), self.keeps_nominations.clone());
        tokio::select! {
            Ok(()) = preemption.changed() => {}
            Ok(()) = nominations.changed() => {}
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_common::log::{LogArgs, LogFormat};
    use parking_lot::Mutex;
    use tracing::{Dispatch, debug};

    use super::*;

    #[test]
    fn what_is_said_of_preemption_is_taken_over_and_the_rest_at_the_next_start() {
        let (source, mut config) = (ConfigSource::default(), Config::default());
        let stop = "scheduler: {preemption: {enabled: false, victims: {scope: Gangs}}}";
        let taken = take_over(&source, &mut config, stop).unwrap();
        assert_eq!((taken.preemption, taken.restart), (true, false));
        assert_eq!(config, Config::parse(stop).unwrap());
        let more = "{scheduler: {preemption: {enabled: true}}, workloads: {concurrency: 3}}";
        let taken = take_over(&source, &mut config, more).unwrap();
        assert_eq!((taken.preemption, taken.restart), (true, true));
        assert_eq!(config, Config::default());
        let level = "logLevel: debug";
        let taken = take_over(&source, &mut config, level).unwrap();
        assert_eq!((taken.log_level, taken.restart), (true, false));
        assert_eq!(config, Config::parse(level).unwrap());
        let unchanged = take_over(&source, &mut config, "").unwrap();
        assert_eq!((unchanged.preemption, unchanged.restart), (false, false));
    }

    #[test]
    fn a_configuration_that_is_refused_changes_nothing() {
        let (source, mut config) = (ConfigSource::default(), Config::default());
        for text in [
            "scheduler: {preemption: {enabled: false, minRuntimeSeconds: -1}}",
            "scheduler: {preemption: {enabled: false}}\nnews: 1",
            "logLevel: verbose",
        ] {
            assert!(take_over(&source, &mut config, text).is_err());
            assert_eq!(config, Config::default());
        }
    }

    /// Captured log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn quiet() -> (Lines, Dispatch, LogHandle, LogLevel) {
        let lines = Lines::default();
        let log_level: LogLevel = "error".parse().unwrap();
        let args = LogArgs {
            log_format: LogFormat::Text,
            log_level: log_level.clone(),
        };
        let written = lines.clone();
        let (log, handle) = args.log(move || written.clone(), false);
        (lines, log, handle, log_level)
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_changes_the_level_of_the_log() {
        let (lines, log, handle, otherwise) = quiet();
        let _here = tracing::dispatcher::set_default(&log);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let logged = || String::from_utf8(std::mem::take(&mut *lines.0.lock())).unwrap();
        let (sender, _receiver) = watch::channel(PreemptionConfig::default());
        let source = ConfigSource {
            file: Some(path.clone()),
            defaults: None,
        };
        let live = LiveLog::new(handle, otherwise, "");
        let mut tasks = tokio::task::JoinSet::new();
        std::fs::write(&path, "").unwrap();
        tasks.spawn(follow(
            source,
            String::new(),
            Config::default(),
            sender,
            live,
        ));
        for (text, level, debug, error) in [
            ("", "", false, true),
            (
                "logLevel: debug",
                "logLevel is in force level=debug",
                true,
                true,
            ),
            ("logLevel: verbose", "must be off, error,", true, true),
            ("logLevel: \"off\"", "", false, false),
            (
                "logLevel: info,lockstep_manager=debug",
                "level=info,lockstep_manager=debug",
                true,
                true,
            ),
            ("", "", false, true),
        ] {
            std::fs::write(&path, text).unwrap();
            // Time advances only here.
            tokio::time::sleep(2 * INTERVAL).await;
            let said = logged();
            assert!(said.contains(level), "{text}: {said}");
            debug!("a detail");
            tracing::error!("a failure");
            let said = logged();
            assert_eq!(said.contains("a detail"), debug, "{text}: {said}");
            assert_eq!(said.contains("a failure"), error, "{text}: {said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_changes_the_settings_and_wakes_its_watchers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, "").unwrap();
        let (sender, receiver) = watch::channel(PreemptionConfig::default());
        let own = ["lockstep-system", "lockstep-agent"].map(str::to_owned);
        let (nominations, keeps_nominations) = watch::channel(true);
        let mut live = LiveSettings::new(Config::default(), own, receiver, keeps_nominations);
        let source = ConfigSource {
            file: Some(path.clone()),
            defaults: None,
        };
        let (_, _log, handle, otherwise) = quiet();
        let log = LiveLog::new(handle, otherwise, "");
        let following = follow(source, String::new(), Config::default(), sender, log);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(following);
        assert_eq!(live.take(), None);
        // The kubelet replaces the file in the same way.
        let new = folder.path().join("new.yaml");
        std::fs::write(&new, "scheduler: {preemption: {enabled: false}}").unwrap();
        std::fs::rename(&new, &path).unwrap();
        live.changed().await;
        let settings = live.take().expect("they have changed");
        assert!(!settings.preemption_enabled);
        assert!(settings.rules.victims.exclude("lockstep-agent"));
        assert_eq!(live.take(), None);

        nominations.send_replace(false);
        live.changed().await;
        let settings = live.take().expect("the server is older");
        assert!(!settings.keeps_nominations && !settings.preemption_enabled);
        assert_eq!(live.take(), None);
    }
}
