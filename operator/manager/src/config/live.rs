//! What is taken over from the configuration file while the manager runs: all that it says of
//! preemption, so that evictions can be stopped at once.
//!
//! The file is a mounted `ConfigMap`, which the kubelet replaces as a whole by changing a symbolic
//! link: it is read again from time to time and compared. One that is refused changes nothing.

use std::time::Duration;

use lockstep_scheduler::SchedulerSettings;
use lockstep_scheduler::config::PreemptionConfig;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{Config, ConfigError, ConfigSource};

/// Time between two looks at the file. The kubelet takes up to a minute to bring a change there.
const INTERVAL: Duration = Duration::from_secs(2);

/// What came of a look at the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TakenOver {
    /// Whether it says something else of preemption than before.
    preemption: bool,
    /// Whether it says something else of what is read at start only.
    restart: bool,
}

/// Takes over what the text says of preemption.
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
    let restart = *config != new;
    Ok(TakenOver {
        preemption,
        restart,
    })
}

/// Follows the file for ever, where there is one. `config` is what it said at start, `text` its
/// content then.
pub async fn follow(
    source: ConfigSource,
    mut text: String,
    mut config: Config,
    preemption: watch::Sender<PreemptionConfig>,
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
                if taken.restart {
                    warn!(
                        "the configuration has changed beyond scheduler.preemption: the rest is taken over at the next start"
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

/// The constants of the scheduler as the configuration has them now.
#[derive(Debug)]
pub struct LiveSettings {
    config: Config,
    /// Namespaces of the operator itself.
    own: [String; 2],
    preemption: watch::Receiver<PreemptionConfig>,
    keeps_nominations: watch::Receiver<bool>,
}

impl LiveSettings {
    /// Follows what is said of preemption, and whether kube-scheduler keeps nominations that others make.
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

    /// A configuration that nobody changes, of a manager without namespaces of its own.
    pub fn unchanging(config: Config) -> Self {
        let (_, preemption) = watch::channel(config.scheduler.preemption.clone());
        let (_, keeps_nominations) = watch::channel(true);
        let own = [String::new(), String::new()];
        Self::new(config, own, preemption, keeps_nominations)
    }

    /// The constants, if they have changed since the last call.
    pub fn take(&mut self) -> Option<SchedulerSettings> {
        // Nobody changes what has no sender any more.
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

    /// The constants; what is said of preemption as of the last call of [`Self::take`].
    pub fn settings(&self) -> SchedulerSettings {
        let [manager, agents] = &self.own;
        SchedulerSettings {
            keeps_nominations: *self.keeps_nominations.borrow(),
            ..self.config.scheduler_settings([manager, agents])
        }
    }

    /// Returns when the constants have changed since the last call of [`Self::take`].
    pub async fn changed(&self) {
        let (mut preemption, mut nominations) =
            (self.preemption.clone(), self.keeps_nominations.clone());
        tokio::select! {
            Ok(()) = preemption.changed() => {}
            Ok(()) = nominations.changed() => {}
            // Nobody changes what has no sender any more.
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let unchanged = take_over(&source, &mut config, "").unwrap();
        assert_eq!((unchanged.preemption, unchanged.restart), (false, false));
    }

    #[test]
    fn a_configuration_that_is_refused_changes_nothing() {
        let (source, mut config) = (ConfigSource::default(), Config::default());
        for text in [
            "scheduler: {preemption: {enabled: false, minRuntimeSeconds: -1}}",
            "scheduler: {preemption: {enabled: false}}\nnews: 1",
        ] {
            assert!(take_over(&source, &mut config, text).is_err());
            assert_eq!(config, Config::default());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_changes_the_constants_and_wakes_who_waits_for_that() {
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
        let following = follow(source, String::new(), Config::default(), sender);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(following);
        assert_eq!(live.take(), None);
        // As the kubelet does: the file is replaced.
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
