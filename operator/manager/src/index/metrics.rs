use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::WatchedKind;

#[derive(Clone, Debug, Default)]
pub struct WatchErrors(Family<KindLabel, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl WatchErrors {
    pub fn register(registry: &mut Registry) -> Self {
        let errors = Self::default();
        for kind in WatchedKind::always() {
            let kind = kind.as_str();
            drop(errors.0.get_or_create(&KindLabel { kind }));
        }
        let help = "Watches that failed";
        registry.register("lockstep_watch_errors", help, errors.0.clone());
        errors
    }

    pub fn count(&self, kind: &'static str) {
        self.0.get_or_create(&KindLabel { kind }).inc();
    }
}
