use chrono::{DateTime, TimeDelta, Utc};

/// Time since an event, as in kubectl (`duration.HumanDuration`): at most two units, the smaller
/// one only for short times.
pub fn age(since: Option<DateTime<Utc>>, now: DateTime<Utc>) -> String {
    since.map_or_else(|| "-".to_owned(), |since| span(now - since))
}

/// A duration in the same format. A negative duration, from clock skew, counts as 0.
pub fn span(length: TimeDelta) -> String {
    let seconds = length.num_seconds().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two_units([(minutes, 'm'), (seconds % 60, 's')]),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two_units([(hours, 'h'), (minutes % 60, 'm')]),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two_units([(days, 'd'), (hours % 24, 'h')]),
        _ if days < 2 * 365 => format!("{days}d"),
        _ if days < 8 * 365 => two_units([(days / 365, 'y'), (days % 365, 'd')]),
        _ => format!("{}y", days / 365),
    }
}

/// Two units; the smaller one is omitted if it is 0.
fn two_units([(big, unit), (small, small_unit)]: [(i64, char); 2]) -> String {
    match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    }
}

/// A duration with tenths of a second below 10 s.
pub fn precise(length: TimeDelta) -> String {
    let milliseconds = length.num_milliseconds().max(0);
    if milliseconds < 10_000 {
        format!("{:.1}s", milliseconds as f64 / 1000.0)
    } else {
        span(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        let shown = |seconds| span(TimeDelta::seconds(seconds));
        for (seconds, expected) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (86_400 * 365 * 2, "2y"),
            (86_400 * (365 * 3 + 5), "3y5d"),
            (86_400 * 365 * 9, "9y"),
        ] {
            assert_eq!(shown(seconds), expected, "{seconds}");
        }
    }
}
