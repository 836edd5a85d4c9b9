//! Takes over `scheduler.preemption.enabled`, `nodeHealth.mode` and `logLevel` from a changed
//! configuration file while the manager runs. Evictions and moves can thus be stopped at once, and
//! problems examined without a restart. Other changes take effect at the next start.
//!
//! The file is a mounted `ConfigMap`, which the kubelet replaces by switching a symbolic link. So
//! the file is polled and compared. An invalid file changes nothing.

use std::mem;
use std::time::Duration;

use lockstep_api::NodeHealthMode;
use lockstep_common::log::{LogHandle, LogLevel};
use lockstep_scheduler::SchedulerSettings;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{Config, ConfigError, ConfigSource};

/// Polling interval. The kubelet takes up to a minute to update the file.
const INTERVAL: Duration = Duration::from_secs(2);

/// Returns true if all changes are taken over.
fn take_over(source: &ConfigSource, config: &mut Config, text: &str) -> Result<bool, ConfigError> {
    let new = source.parse(text)?;
    config.scheduler.preemption.enabled = new.scheduler.preemption.enabled;
    config.node_health.mode = new.node_health.mode;
    config.log_level.clone_from(&new.log_level);
    Ok(*config == new)
}

/// Where changed values go.
#[derive(Clone, Debug)]
pub struct LiveValues {
    /// Whether preemption is enabled.
    pub preemption: watch::Sender<bool>,
    /// What is done about signals of nodes.
    pub node_health: watch::Sender<NodeHealthMode>,
}

impl LiveValues {
    /// The values of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            preemption: watch::Sender::new(config.scheduler.preemption.enabled),
            node_health: watch::Sender::new(config.node_health.mode),
        }
    }

    fn set(&self, config: &Config) {
        let enabled = config.scheduler.preemption.enabled;
        if self
            .preemption
            .send_if_modified(|now| mem::replace(now, enabled) != enabled)
        {
            info!(enabled, "scheduler.preemption.enabled has changed");
        }
        let mode = config.node_health.mode;
        if self
            .node_health
            .send_if_modified(|now| mem::replace(now, mode) != mode)
        {
            info!(?mode, "nodeHealth.mode has changed");
        }
    }
}

/// Follows the configuration file, if there is one. `config` and `text` are its parsed and original
/// content at start.
pub async fn follow(
    source: ConfigSource,
    mut text: String,
    mut config: Config,
    values: LiveValues,
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
        let level = config.log_level.clone();
        match take_over(&source, &mut config, &new) {
            Ok(all) => {
                values.set(&config);
                if config.log_level != level {
                    log.follow(&config.log_level);
                }
                if !all {
                    warn!(
                        "the configuration has changed beyond scheduler.preemption.enabled, nodeHealth.mode and logLevel: restart the managers to apply it"
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
    /// The settings at the last call of [`Self::take`].
    settings: SchedulerSettings,
    preemption: watch::Receiver<bool>,
    keeps_nominations: watch::Receiver<bool>,
}

impl LiveSettings {
    /// Follows whether preemption is enabled, and whether kube-scheduler keeps nominations of other
    /// controllers.
    pub fn new(
        mut settings: SchedulerSettings,
        preemption: watch::Receiver<bool>,
        keeps_nominations: watch::Receiver<bool>,
    ) -> Self {
        settings.keeps_nominations = *keeps_nominations.borrow();
        Self {
            settings,
            preemption,
            keeps_nominations,
        }
    }

    /// Fixed settings.
    pub fn unchanging(settings: SchedulerSettings) -> Self {
        let (_, preemption) = watch::channel(settings.preemption_enabled);
        let (_, keeps_nominations) = watch::channel(settings.keeps_nominations);
        Self::new(settings, preemption, keeps_nominations)
    }

    /// The settings, if they have changed since the last call.
    pub fn take(&mut self) -> Option<SchedulerSettings> {
        // Without a sender, the value cannot change.
        let preemption = self.preemption.has_changed().unwrap_or(false);
        let nominations = self.keeps_nominations.has_changed().unwrap_or(false);
        if !preemption && !nominations {
            return None;
        }
        self.settings.preemption_enabled = *self.preemption.borrow_and_update();
        self.settings.keeps_nominations = *self.keeps_nominations.borrow_and_update();
        Some(self.settings.clone())
    }

    /// The settings at the last call of [`Self::take`].
    pub fn settings(&self) -> SchedulerSettings {
        self.settings.clone()
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
    fn preemption_mode_and_log_level_are_taken_over_and_other_changes_are_not() {
        let (source, mut config) = (ConfigSource::default(), Config::default());
        let stop =
            "{scheduler: {preemption: {enabled: false}}, nodeHealth: {mode: Act}, logLevel: debug}";
        assert!(take_over(&source, &mut config, stop).unwrap());
        assert_eq!(config, Config::parse(stop).unwrap());
        let more =
            "{scheduler: {preemption: {victims: {scope: Gangs}}}, workloads: {concurrency: 3}}";
        assert!(!take_over(&source, &mut config, more).unwrap());
        assert_eq!(config, Config::default());
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
            LiveValues::new(&Config::default()),
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
        let values = LiveValues::new(&Config::default());
        let (receiver, mut mode) = (
            values.preemption.subscribe(),
            values.node_health.subscribe(),
        );
        let (nominations, keeps_nominations) = watch::channel(true);
        let mut live = LiveSettings::new(SchedulerSettings::default(), receiver, keeps_nominations);
        let source = ConfigSource {
            file: Some(path.clone()),
            defaults: None,
        };
        let (_, _log, handle, otherwise) = quiet();
        let log = LiveLog::new(handle, otherwise, "");
        let following = follow(source, String::new(), Config::default(), values, log);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(following);
        assert_eq!(live.take(), None);
        // The kubelet replaces the file in the same way.
        let new = folder.path().join("new.yaml");
        let changed = "{scheduler: {preemption: {enabled: false}}, nodeHealth: {mode: Act}}";
        std::fs::write(&new, changed).unwrap();
        std::fs::rename(&new, &path).unwrap();
        live.changed().await;
        let settings = live.take().expect("they have changed");
        assert!(!settings.preemption_enabled);
        assert_eq!(*mode.borrow_and_update(), NodeHealthMode::Act);
        assert_eq!(live.take(), None);

        nominations.send_replace(false);
        live.changed().await;
        let settings = live.take().expect("the server is older");
        assert!(!settings.keeps_nominations && !settings.preemption_enabled);
        assert_eq!(live.take(), None);
    }
}
