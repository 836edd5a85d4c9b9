//! Addresses of members and compact sets of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// One pod of a workload: group, replica of the group, index in the replica. Within a group ordered
/// as ranks are numbered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Name of the group, an entry of `spec.groups`.
    pub group: String,
    /// Replica of the group, from 0.
    pub replica: i32,
    /// Index in the replica, from 0.
    pub index: i32,
}

impl Member {
    /// A member address.
    pub fn new(group: impl Into<String>, replica: i32, index: i32) -> Self {
        Self {
            group: group.into(),
            replica,
            index,
        }
    }
}

impl fmt::Display for Member {
    /// `workers-0-7`: the stable part of the hostname, which is how people know a member.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.group, self.replica, self.index)
    }
}

/// Why a member range does not parse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("member range {0:?} is not of the form group/replica/0-7,9")]
pub struct InvalidMemberRange(String);

/// A set of members, written compactly: one string per replica, such as `workers/0/0-7,9`.
///
/// The indexes use the format of `completedIndexes` in a Job's status. A set of 20,000 members in
/// full replicas of 8 is 2,500 short strings; placements and orders stay far below the object size
/// limit of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSet(BTreeSet<Member>);

impl MemberSet {
    /// The members in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// Whether the member is in the set.
    pub fn contains(&self, member: &Member) -> bool {
        self.0.contains(member)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no member is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a member; false when it was there already.
    pub fn insert(&mut self, member: Member) -> bool {
        self.0.insert(member)
    }

    /// Reads the compact form. Bounded: a range beyond 20,000 indexes is refused rather than
    /// expanded.
    pub fn parse<S: AsRef<str>>(ranges: &[S]) -> Result<Self, InvalidMemberRange> {
        let mut out = Self::default();
        for text in ranges {
            let text = text.as_ref();
            let invalid = || InvalidMemberRange(text.to_owned());
            let mut parts = text.split('/');
            let (Some(group), Some(replica), Some(indexes), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(invalid());
            };
            let replica = i32::from_str(replica).map_err(|_| invalid())?;
            for index in parse_indexes(indexes).ok_or_else(invalid)? {
                out.insert(Member::new(group, replica, index));
            }
        }
        Ok(out)
    }

    /// The compact form, one string per replica in rank order.
    pub fn to_ranges(&self) -> Vec<String> {
        let mut replicas: BTreeMap<(&str, i32), Vec<i32>> = BTreeMap::new();
        for m in &self.0 {
            replicas
                .entry((&m.group, m.replica))
                .or_default()
                .push(m.index);
        }
        replicas
            .into_iter()
            .map(|((group, replica), indexes)| {
                format!("{group}/{replica}/{}", format_indexes(&indexes))
            })
            .collect()
    }
}

impl FromIterator<Member> for MemberSet {
    fn from_iter<I: IntoIterator<Item = Member>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl IntoIterator for MemberSet {
    type Item = Member;
    type IntoIter = std::collections::btree_set::IntoIter<Member>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Most indexes that one range may expand to: the limit of members per workload.
const MAX_INDEXES: usize = 20_000;

/// Writes ascending indexes in the range format of a Job's `completedIndexes`: `0-2,5`.
pub fn format_indexes(ascending: &[i32]) -> String {
    let mut out = String::new();
    let mut run: Option<(i32, i32)> = None;
    let mut flush = |run: Option<(i32, i32)>| {
        if let Some((first, last)) = run {
            if !out.is_empty() {
                out.push(',');
            }
            out.push_str(&first.to_string());
            if last > first {
                out.push('-');
                out.push_str(&last.to_string());
            }
        }
    };
    for &i in ascending {
        run = match run {
            Some((first, last)) if i == last.saturating_add(1) => Some((first, i)),
            other => {
                flush(other);
                Some((i, i))
            }
        };
    }
    flush(run);
    out
}

/// Reads the range format; None when it is malformed, has negative or descending bounds, or is too
/// large.
pub fn parse_indexes(text: &str) -> Option<Vec<i32>> {
    let mut out = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
        if first < 0 || last < first || out.len() + (last - first) as usize >= MAX_INDEXES {
            return None;
        }
        out.extend(first..=last);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_member_set_survives_its_compact_form(members in prop::collection::btree_set(("[a-c]{1,3}", 0..4i32, 0..40i32), 0..60)) {
            let set: MemberSet = members.into_iter().map(|(g, r, i)| Member::new(g, r, i)).collect();
            prop_assert_eq!(MemberSet::parse(&set.to_ranges()).unwrap(), set);
        }
    }

    #[test]
    fn ranges_are_written_as_a_job_writes_completed_indexes() {
        assert_eq!(format_indexes(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(format_indexes(&[]), "");
    }

    #[test]
    fn malformed_and_oversized_ranges_are_refused() {
        for bad in [
            "workers/0",
            "workers/x/0",
            "workers/0/3-1",
            "workers/0/-1",
            "workers/0/0-2000000000",
            "a/0/1/2",
        ] {
            assert!(MemberSet::parse(&[bad]).is_err(), "{bad}");
        }
    }
}
