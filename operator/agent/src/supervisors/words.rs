//! Words of a training process after step and checkpoint: `key=value`.

use lockstep_api::workload::ProgressMetric;

/// Most metrics of one member.
const METRICS: usize = 4;
/// Longest key and value in bytes. The shortest text of any double is shorter.
const LONGEST: usize = 32;

/// Key for requests of the process, which are ignored.
const RESERVED: &str = "requests";

/// The total number of steps, and the first metrics. Invalid words are ignored.
pub(super) fn read(words: &str) -> (Option<i64>, Vec<ProgressMetric>) {
    let (mut total, mut metrics) = (None, Vec::<ProgressMetric>::new());
    for (name, value) in words.split_ascii_whitespace().filter_map(pair) {
        match name {
            "total" => total = value.parse().ok().filter(|total| *total > 0),
            RESERVED => {}
            _ => {
                if metrics.len() < METRICS && metrics.iter().all(|m| m.name != name) {
                    metrics.push(ProgressMetric {
                        name: name.to_owned(),
                        value: value.to_owned(),
                    });
                }
            }
        }
    }
    (total, metrics)
}

fn pair(word: &str) -> Option<(&str, &str)> {
    let (key, value) = word.split_once('=')?;
    let valid = key.starts_with(|c: char| c.is_ascii_lowercase())
        && key
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && value.parse().is_ok_and(f64::is_finite);
    (valid && key.len().max(value.len()) <= LONGEST).then_some((key, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(words: &str) -> (Option<i64>, String) {
        let (total, metrics) = read(words);
        let shown = metrics.iter().map(|m| format!("{}={}", m.name, m.value));
        (total, shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn total_and_the_first_four_metrics_are_taken() {
        assert_eq!(
            shown("a=1 total=90000 requests=1 b_2=-2.5e-3 c=3 a=9 d=4 e=5"),
            (Some(90_000), "a=1 b_2=-2.5e-3 c=3 d=4".to_owned())
        );
    }

    #[test]
    fn invalid_words_are_ignored() {
        let long = format!("{}=1 a={}", "k".repeat(33), "1".repeat(33));
        let words = "A=1 1a=1 =1 a= a=b b=inf c=nan d=1e999 e=1=2 é=1 f=\u{1b}1 total=0 total=-1 total=1.5 ok=1";
        assert_eq!(shown(&format!("{long} {words}")), (None, "ok=1".to_owned()));
    }

    proptest! {
        #[test]
        fn any_words_give_few_and_short_metrics(words in "([a-c]{1,2}=[0-9.e-]{1,40} |\\PC{0,20} ){0,30}") {
            let (_, metrics) = read(&words);
            prop_assert!(metrics.len() <= METRICS);
            let finite = |m: &ProgressMetric| m.value.parse().is_ok_and(f64::is_finite);
            prop_assert!(metrics.iter().all(|m| finite(m) && m.name.len() <= LONGEST && m.value.len() <= LONGEST));
        }
    }
}
