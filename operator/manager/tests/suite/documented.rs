//! Compares exported metrics with their documentation. A test of the agent includes this file.

use std::collections::BTreeMap;

/// Generated from a table that `xtask/tests/metrics.rs` compares with the sources.
pub const PAGE: &str = include_str!("../../../../docs/reference/metrics.md");

/// Kind and labels, without `le`, of each metric of the page.
fn rows(page: &str) -> BTreeMap<&str, (&str, Vec<&str>)> {
    let rows = page.lines().filter_map(|l| l.strip_prefix("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let labels = cells[2].split(", ").filter(|l| !l.is_empty());
        (cells[0].trim_end_matches('`'), (cells[1], labels.collect()))
    })
    .collect()
}

/// Names and values of the labels of a series, without `le`.
fn labels(series: &str) -> Vec<(&str, &str)> {
    // Every second piece is a value.
    let pieces: Vec<&str> = series.split('"').collect();
    let (pairs, _) = pieces.as_chunks::<2>();
    let no_letter = |c: char| !c.is_ascii_alphabetic() && c != '_';
    pairs
        .iter()
        .map(|[name, value]| (name.trim_matches(no_letter), *value))
        .filter(|(name, _)| *name != "le")
        .collect()
}

/// The documented values of a label. `None` if the page does not list them.
fn values<'p>(page: &'p str, metric: &str, label: &str) -> Option<Vec<&'p str>> {
    let rows = page.lines().map(|row| row.split(" | ").collect::<Vec<_>>());
    let of_metric = |cell: &str| cell == "all" || cell.contains(&format!("`{metric}`"));
    let mut found = rows.filter_map(|row| match row.as_slice() {
        [name, metrics, values] if name.strip_prefix("| ") == Some(label) => {
            let values = values.trim_end_matches(" |").split(", ");
            of_metric(metrics).then(|| values.collect())
        }
        _ => None,
    });
    found.next()
}

/// Differences of an OpenMetrics scrape from the page: unknown metrics, other labels, other kinds.
pub fn mistakes(scrape: &str, page: &str) -> Vec<String> {
    let rows = rows(page);
    let mut out = Vec::new();
    for line in scrape.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let name = format!("{name}{suffix}");
            if rows.get(name.as_str()).is_none_or(|row| row.0 != kind) {
                out.push(format!("{name} is a {kind}"));
            }
        } else if !line.starts_with('#') {
            let series = line.rsplit_once(' ').unwrap().0;
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            let parts = ["_bucket", "_sum", "_count"];
            let stem = parts.iter().find_map(|p| name.strip_suffix(p));
            let mut names = [Some(name), stem].into_iter().flatten();
            let found = names.find_map(|n| rows.get_key_value(n));
            let labels = labels(rest);
            let has = |name: &str, says: &[&str]| {
                let listed = |(label, value): &(&str, &str)| {
                    values(page, name, label).is_none_or(|v| v.contains(value))
                };
                labels.iter().map(|l| l.0).eq(says.iter().copied()) && labels.iter().all(listed)
            };
            if found.is_none_or(|(name, (_, says))| !has(name, says)) {
                out.push(series.to_owned());
            }
        }
    }
    out
}

#[test]
fn what_the_page_does_not_say_or_says_otherwise_is_found() {
    for (scrape, said) in [
        ("lockstep_moods 1", "lockstep_moods"),
        ("# TYPE lockstep_moods gauge", "lockstep_moods is a gauge"),
        ("lockstep_gangs 1", "lockstep_gangs"),
        (
            "lockstep_gangs{phase=\"x\"} 1",
            "lockstep_gangs{phase=\"x\"}",
        ),
        (
            "lockstep_agent_stops_total{result=\"failed\",code=\"1\"} 1",
            "lockstep_agent_stops_total{result=\"failed\",code=\"1\"}",
        ),
        (
            "lockstep_write_errors_total{class=\"denied\"} 1",
            "lockstep_write_errors_total{class=\"denied\"}",
        ),
        (
            "lockstep_recovery_seconds_count{action=\"Restart\",result=\"in_place\"} 1",
            "lockstep_recovery_seconds_count{action=\"Restart\",result=\"in_place\"}",
        ),
        (
            "# TYPE lockstep_placements gauge",
            "lockstep_placements is a gauge",
        ),
    ] {
        assert_eq!(mistakes(scrape, PAGE), [said]);
    }
    for right in [
        "# TYPE lockstep_gangs gauge\nlockstep_gangs{state=\"held\"} 1",
        "# TYPE lockstep_placements counter\nlockstep_placements_total 1",
        "# TYPE lockstep_build info\nlockstep_build_info{version=\"1\",commit=\"a\"} 1",
        "lockstep_recovery_seconds_count{action=\"RestartPod\",result=\"in_place\"} 1",
        "# TYPE lockstep_incident_phase_seconds histogram\n\
            lockstep_incident_phase_seconds_bucket{phase=\"stop\",le=\"1.0\"} 1\n# EOF",
    ] {
        assert_eq!(mistakes(right, PAGE), Vec::<String>::new());
    }
    let spoilt = PAGE.replace(
        "| `lockstep_gangs` | gauge |",
        "| `lockstep_gangs` | counter |",
    );
    let found = mistakes("# TYPE lockstep_gangs gauge", &spoilt);
    assert_eq!(found, ["lockstep_gangs is a gauge"]);
}
