//! Parts of messages that an archive must not contain, whatever the objects have.

use std::net::{Ipv4Addr, Ipv6Addr};

/// In place of hidden text.
pub(super) const LEFT_OUT: &str = "[left out]";
/// In place of an address.
const ADDRESS: &str = "ADDRESS";
const SCHEME: &str = "://";
/// Words before a host that has no scheme, and the character behind it.
const HOSTS: [(&str, char); 2] = [("webhook \"", '"'), ("dial tcp: lookup ", ' ')];

/// A text without IP addresses, hosts of URLs, and names of webhooks.
pub(super) fn without_addresses(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let host = HOSTS.iter().find(|(words, _)| rest.starts_with(words));
        let (kept, hidden) = if let Some((words, end)) = host {
            let host = &rest[words.len()..];
            (words.len(), host.find(*end).unwrap_or(host.len()))
        } else if let Some(url) = rest.strip_prefix(SCHEME) {
            (SCHEME.len(), authority(url))
        } else if !text[..at].ends_with(char::is_alphanumeric) {
            (0, address(rest))
        } else {
            (0, 0)
        };
        if hidden > 0 {
            out.push_str(&rest[..kept]);
            out.push_str(ADDRESS);
            at += kept + hidden;
        } else {
            out.push(next);
            at += next.len_utf8();
        }
    }
    out
}

/// Length of the user, host and port at the begin of a text.
fn authority(text: &str) -> usize {
    let known = if text.starts_with(LEFT_OUT) {
        LEFT_OUT.len()
    } else {
        0
    };
    let ends = |c: char| c.is_whitespace() || "\"'`/?#\\".contains(c);
    let end = text[known..]
        .find(ends)
        .map_or(text.len(), |end| known + end);
    text[..end]
        .trim_end_matches(['.', ':', ',', ';', ')'])
        .len()
}

/// Length of the IP address at the begin of a text.
fn address(text: &str) -> usize {
    let end = text.find(|c: char| !(c.is_ascii_hexdigit() || ".:".contains(c)));
    let all = &text[..end.unwrap_or(text.len())];
    let mut found = all.trim_end_matches('.');
    // A port and a colon may follow.
    while found.parse::<Ipv4Addr>().is_err() && found.parse::<Ipv6Addr>().is_err() {
        found = found.rfind(':').map_or("", |colon| &found[..colon]);
        if found.is_empty() {
            return 0;
        }
    }
    // `::` alone is no address that a message has.
    if found.len() < 3 || text[found.len()..].starts_with(char::is_alphanumeric) {
        0
    } else {
        found.len()
    }
}

/// Where a message of Lockstep quotes a container, a kubelet or a webhook: after the colon behind
/// `container x ended (Error)`, `container x waits: Reason`, `failed (Reason)` and `failed`.
pub(super) fn output(text: &str) -> Option<usize> {
    let begins = ["container ", " failed (", " failed: ", " hangs"];
    let from = begins.iter().filter_map(|words| text.find(words)).min()?;
    let colon = |from: usize| text[from..].find(": ").map(|at| from + at + 2);
    let first = colon(from)?;
    if text[..first].ends_with(" waits: ") {
        colon(first)
    } else {
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts_are_masked() {
        for (text, expected) in [
            (
                "dial tcp 10.1.2.3:443: refused, from 10.1.2.4.",
                "dial tcp ADDRESS:443: refused, from ADDRESS.",
            ),
            (
                "[fd00::1]:80 and fe80::a: down",
                "[ADDRESS]:80 and ADDRESS: down",
            ),
            (
                "failed calling webhook \"a.acme.corp\": Post \"https://a.acme.corp:443/x?t=10s\": EOF",
                "failed calling webhook \"ADDRESS\": Post \"https://ADDRESS/x?t=10s\": EOF",
            ),
            (
                "https://u:p@a.corp,https://b.corp: no",
                "https://ADDRESS://ADDRESS: no",
            ),
            (
                "dial tcp: lookup a.corp on 10.0.0.10:53",
                "dial tcp: lookup ADDRESS on ADDRESS:53",
            ),
            (
                "at 2026-11-21T10:00:00Z std::io a::xyz v1.2.3 12:30",
                "at 2026-11-21T10:00:00Z std::io a::xyz v1.2.3 12:30",
            ),
        ] {
            assert_eq!(without_addresses(text), expected);
        }
    }
}
