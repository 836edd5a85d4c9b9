use lockstep_api::condition::reasons;
use lockstep_api::workload::Backoff;

use super::Facts;
use crate::view::{FailedRequest, RejectedRequest, Target};
use crate::wake::Wake;

impl<'a> Facts<'a> {
    /// The last request that the API server failed, until its retry is due.
    pub fn failed(&self, wake: &mut Wake) -> Option<&'a FailedRequest> {
        let failed = self.view.failed()?;
        (!self.due(failed.until).passed(wake)).then_some(failed)
    }

    /// Why a placement without pods is released.
    pub fn release_reason(&self, wake: &mut Wake) -> &'static str {
        let failed = self.failed(wake);
        failed.map_or(reasons::REPLACEMENT_TIMEOUT, |_| reasons::API_SERVER_ERROR)
    }

    /// True if a gang's back-off is over. After failed pods, the API server must also have answered
    /// a dry run: nodes without pods are of no use.
    pub fn is_over(&self, backoff: &Backoff, wake: &mut Wake) -> bool {
        self.due(backoff.until).passed(wake)
            && (backoff.reason != reasons::API_SERVER_ERROR || {
                let last_run = self.view.dry_run();
                last_run.is_some_and(|d| !d.failed && d.at >= backoff.until)
            })
    }

    /// The object other than a pod that the API server rejects, unless the last retry has
    /// succeeded.
    pub fn rejected_object(&self, wake: &mut Wake) -> Option<&'a RejectedRequest> {
        let over = self.view.settings().retry * 2;
        let mut rejections = self.view.rejections().iter();
        rejections.find(|rejection| {
            let of_object = matches!(rejection.target, Target::Object(..));
            of_object && !self.due(rejection.at + over).passed(wake)
        })
    }

    /// The API server's message on why pods cannot be created.
    pub fn prevents_pods(&self, wake: &mut Wake) -> Option<&'a str> {
        let failed = self.failed(wake).map(|f| f.message.as_str());
        failed.or_else(|| self.rejected_object(wake).map(|r| r.message.as_str()))
    }
}
