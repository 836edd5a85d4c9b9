// The manager's test compares its scrape with the page in the same way.
#[path = "../../../manager/tests/suite/documented.rs"]
mod documented;

use prometheus_client::registry::Registry;
use tonic::Code;

use self::documented::{PAGE, undocumented};
use super::*;
use crate::metrics::LinkRefusal;

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[test]
fn what_is_counted_by_a_known_value_begins_at_zero() {
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    metrics.stopped(true);
    metrics.refused(LinkRefusal::Flood);
    let text = text(&registry);
    for line in [
        "lockstep_agent_stops_total{result=\"stopped\"} 1",
        "lockstep_agent_stops_total{result=\"failed\"} 0",
        "lockstep_agent_supervisor_refused_total{reason=\"path\"} 0",
        "lockstep_agent_supervisor_refused_total{reason=\"greeting\"} 0",
        "lockstep_agent_supervisor_refused_total{reason=\"version\"} 0",
        "lockstep_agent_supervisor_refused_total{reason=\"frame\"} 0",
        "lockstep_agent_supervisor_refused_total{reason=\"flood\"} 1",
        "lockstep_agent_supervisor_refused_total{reason=\"unread\"} 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn every_metric_of_an_agent_is_on_the_reference_page_with_its_kind() {
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    // Series that appear with the first call.
    metrics.called("version", Code::Ok, Duration::ZERO);
    let shown = text(&registry);
    assert_eq!(undocumented(&shown, PAGE), Vec::<&str>::new());
}
