//! What messages have in common: lengths of time, and whether a gang has to be named.

use lockstep_api::names::WHOLE;

/// A length of time in the largest unit that holds it whole: `24 h`, `20 min`, `90 s`.
pub(crate) fn span(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    if seconds >= HOUR && seconds % HOUR == 0 {
        format!("{} h", seconds / HOUR)
    } else if seconds >= MINUTE && seconds % MINUTE == 0 {
        format!("{} min", seconds / MINUTE)
    } else {
        format!("{seconds} s")
    }
}

/// What is said of a gang, which is named where the workload has others.
pub(crate) fn of_gang(key: &str, text: &str) -> String {
    if key == WHOLE {
        text.to_owned()
    } else {
        format!("gang {key}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_at_a_glance() {
        let said = [0, 59, 60, 90, 1200, 3600, 5400, 86_400].map(span);
        let expected = [
            "0 s", "59 s", "1 min", "90 s", "20 min", "1 h", "90 min", "24 h",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_gang_is_named_where_there_are_others() {
        assert_eq!(of_gang("workload", "queued"), "queued");
        assert_eq!(of_gang("workers", "queued"), "gang workers: queued");
    }
}
