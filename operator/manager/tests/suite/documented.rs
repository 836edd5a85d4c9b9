//! Compares exported metrics with the reference page. A test of the agent includes this file.

pub const PAGE: &str = include_str!("../../../../docs/reference/metrics.md");

/// Exported metrics that the page lists with another kind, or not at all.
pub fn undocumented<'a>(scrape: &'a str, page: &str) -> Vec<&'a str> {
    let metrics = scrape.lines().filter_map(|l| l.strip_prefix("# TYPE "));
    let missing = metrics.filter(|metric| {
        let (name, kind) = metric.split_once(' ').unwrap();
        let (suffix, kind) = match kind {
            "counter" => ("_total", kind),
            "info" => ("_info", "gauge"),
            _ => ("", kind),
        };
        !page.contains(&format!("| `{name}{suffix}` | {kind} |"))
    });
    missing.collect()
}

#[test]
fn a_metric_that_the_page_lists_with_another_kind_is_reported() {
    let right = "# TYPE lockstep_placements counter";
    assert_eq!(undocumented(right, PAGE), Vec::<&str>::new());
    let wrong = "# TYPE lockstep_placements gauge\n# TYPE lockstep_moods gauge";
    let expected = ["lockstep_placements gauge", "lockstep_moods gauge"];
    assert_eq!(undocumented(wrong, PAGE), expected);
}
