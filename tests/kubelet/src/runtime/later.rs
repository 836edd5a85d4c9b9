//! Work that a runtime does later; dropped with the runtime.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Everything that is under way.
#[derive(Debug, Default)]
pub(super) struct Later(Mutex<JoinSet<()>>);

impl Later {
    /// Does `work` after `wait`; at once when there is nothing to wait for, so that a profile of
    /// zeros takes no time.
    pub(super) fn after(&self, wait: Duration, work: impl FnOnce() + Send + 'static) {
        if wait.is_zero() {
            return work();
        }
        self.run(async move {
            sleep(wait).await;
            work();
        });
    }

    /// Lets `work` run beside everything else.
    pub(super) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
}
