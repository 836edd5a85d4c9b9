//! Requests that the API server refuses or fails.

use super::Facts;
use crate::view::{FailedRequest, RefusedRequest, Target};
use crate::wake::Wake;

impl<'a> Facts<'a> {
    /// The last request that the API server failed, until its retry is due.
    pub fn failed(&self, wake: &mut Wake) -> Option<&'a FailedRequest> {
        let failed = self.view.failed()?;
        (!self.due(failed.until).passed(wake)).then_some(failed)
    }

    /// An object other than a pod that the API server refuses. The refusal is over if a repetition has
    /// not met it again.
    pub fn refused_object(&self, wake: &mut Wake) -> Option<&'a RefusedRequest> {
        let over = self.view.settings().retry * 2;
        let mut refusals = self.view.refusals().iter();
        refusals.find(|refusal| {
            let of_object = matches!(refusal.target, Target::Object(..));
            of_object && !self.due(refusal.at + over).passed(wake)
        })
    }

    /// The API server's message on why pods cannot be created.
    pub fn prevents_pods(&self, wake: &mut Wake) -> Option<&'a str> {
        let failed = self.failed(wake).map(|f| f.message.as_str());
        failed.or_else(|| self.refused_object(wake).map(|r| r.message.as_str()))
    }
}
