//! Addresses of members and compact sets of members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use thiserror::Error;

/// A pod of a workload: group, replica of the group, index in the replica. Members of a group are
/// ordered by rank.
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
    /// Creates a member address.
    pub fn new(group: impl Into<String>, replica: i32, index: i32) -> Self {
        Self {
            group: group.into(),
            replica,
            index,
        }
    }

    /// `workers/0/7`: a member range of this member only.
    pub fn to_range(&self) -> String {
        format!("{}/{}/{}", self.group, self.replica, self.index)
    }
}

impl fmt::Display for Member {
    /// `workers-0-7`: the stable part of the hostname, by which people know a member.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.group, self.replica, self.index)
    }
}

/// Parse error of a member range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("member range {0:?} is not of the form group/0-3,5/0-7, of group, replicas and indexes")]
pub struct InvalidMemberRange(String);

/// A set of members with a compact text form. One string covers all replicas of a group with the
/// same indexes, such as `workers/0-3,5/0-7`.
///
/// Replicas and indexes use the format of `completedIndexes` in a Job's status. A set with all
/// members of a group is one short string, because every agent reads each order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSet(BTreeSet<Member>);

impl MemberSet {
    /// The members in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.0.iter()
    }

    /// True if the member is in the set.
    pub fn contains(&self, member: &Member) -> bool {
        self.0.contains(member)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a member. Returns false if the set already contains it.
    pub fn insert(&mut self, member: Member) -> bool {
        self.0.insert(member)
    }

    /// Parses the compact form. A string for more than 20,000 members is an error, so memory is
    /// bounded.
    pub fn parse<S: AsRef<str>>(ranges: &[S]) -> Result<Self, InvalidMemberRange> {
        let mut out = Self::default();
        each_run(ranges, |group, replicas, indexes| {
            for replica in replicas {
                let members = indexes
                    .clone()
                    .map(|index| Member::new(group, replica, index));
                out.0.extend(members);
            }
        })?;
        Ok(out)
    }

    /// Returns the compact form, ordered by the first member of each string.
    pub fn to_ranges(&self) -> Vec<String> {
        let mut replicas: BTreeMap<(&str, i32), Vec<i32>> = BTreeMap::new();
        for m in &self.0 {
            replicas
                .entry((&m.group, m.replica))
                .or_default()
                .push(m.index);
        }
        let mut alike: BTreeMap<(&str, String), Vec<i32>> = BTreeMap::new();
        for ((group, replica), indexes) in replicas {
            let same = alike.entry((group, format_indexes(&indexes)));
            same.or_default().push(replica);
        }
        let mut alike = Vec::from_iter(alike);
        alike.sort_by_key(|((group, _), replicas)| (*group, replicas.first().copied()));
        alike
            .into_iter()
            .map(|((group, indexes), replicas)| {
                format!("{group}/{}/{indexes}", format_indexes(&replicas))
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

/// True if a member is in a set in compact form, without expanding it. Every agent checks
/// its few members at each reconcile, and a gang has thousands.
pub fn is_in_ranges<S: AsRef<str>>(
    ranges: &[S],
    member: &Member,
) -> Result<bool, InvalidMemberRange> {
    let mut found = false;
    each_run(ranges, |group, replicas, indexes| {
        found |= group == member.group
            && replicas.contains(&member.replica)
            && indexes.contains(&member.index);
    })?;
    Ok(found)
}

/// Parses the compact form of a set run by run: group, replicas, indexes.
fn each_run<S: AsRef<str>>(
    ranges: &[S],
    mut visit: impl FnMut(&str, RangeInclusive<i32>, RangeInclusive<i32>),
) -> Result<(), InvalidMemberRange> {
    for text in ranges {
        let text = text.as_ref();
        let invalid = || InvalidMemberRange(text.to_owned());
        let mut parts = text.split('/');
        let (Some(group), Some(replicas), Some(indexes), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let replicas = runs(replicas).ok_or_else(invalid)?;
        let indexes = runs(indexes).ok_or_else(invalid)?;
        if count(&replicas) * count(&indexes) > MAX_INDEXES {
            return Err(invalid());
        }
        for replicas in &replicas {
            for indexes in &indexes {
                visit(group, replicas.clone(), indexes.clone());
            }
        }
    }
    Ok(())
}

/// Most members or indexes per string: the limit of members per workload.
const MAX_INDEXES: usize = 20_000;

/// Formats ascending indexes in the range format of a Job's `completedIndexes`: `0-2,5`.
pub fn format_indexes(ascending: &[i32]) -> String {
    let mut out = String::new();
    let mut run: Option<(i32, i32)> = None;
    for &i in ascending {
        run = match run {
            Some((first, last)) if i == last.saturating_add(1) => Some((first, i)),
            other => {
                push_run(&mut out, other);
                Some((i, i))
            }
        };
    }
    push_run(&mut out, run);
    out
}

fn push_run(out: &mut String, run: Option<(i32, i32)>) {
    let Some((first, last)) = run else {
        return;
    };
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(&first.to_string());
    if last > first {
        out.push('-');
        out.push_str(&last.to_string());
    }
}

/// Parses the range format; `None` if it is malformed, has negative or descending bounds, or is too
/// large.
pub fn parse_indexes(text: &str) -> Option<Vec<i32>> {
    Some(runs(text)?.into_iter().flatten().collect())
}

/// Parses the range format run by run, as [`parse_indexes`] does.
fn runs(text: &str) -> Option<Vec<RangeInclusive<i32>>> {
    let mut runs = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
        if first < 0 || last < first {
            return None;
        }
        runs.push(first..=last);
    }
    (count(&runs) <= MAX_INDEXES).then_some(runs)
}

fn count(runs: &[RangeInclusive<i32>]) -> usize {
    runs.iter()
        .map(|r| (r.end() - r.start()) as usize + 1)
        .sum()
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

        #[test]
        fn a_member_is_in_the_compact_form_if_it_is_in_the_set(
            members in prop::collection::btree_set(("[a-c]{1,2}", 0..3i32, 0..12i32), 0..60),
            (group, replica, index) in ("[a-c]{1,2}", 0..3i32, 0..12i32),
        ) {
            let set: MemberSet = members.into_iter().map(|(g, r, i)| Member::new(g, r, i)).collect();
            let asked = Member::new(group, replica, index);
            prop_assert_eq!(is_in_ranges(&set.to_ranges(), &asked).unwrap(), set.contains(&asked));
        }
    }

    #[test]
    fn ranges_are_written_as_a_job_writes_completed_indexes() {
        assert_eq!(format_indexes(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(format_indexes(&[]), "");
    }

    #[test]
    fn replicas_with_the_same_members_share_a_string() {
        let all = (0..1000).map(|replica| Member::new("workers", replica, 0));
        let set: MemberSet = all.collect();
        assert_eq!(set.to_ranges(), ["workers/0-999/0"]);
        let ranges = ["ps/0/0", "workers/0,2-3/0-7", "workers/1/0-2,5"];
        assert_eq!(MemberSet::parse(&ranges).unwrap().to_ranges(), ranges);
        assert_eq!(MemberSet::parse(&ranges).unwrap().len(), 29);
    }

    #[test]
    fn malformed_and_oversized_ranges_are_refused() {
        for bad in [
            "workers/0",
            "workers/x/0",
            "workers/0/3-1",
            "workers/0/-1",
            "workers/0/0-2000000000",
            "workers/0-199/0-100",
            "workers/3-1/0",
            "a/0/1/2",
        ] {
            assert!(MemberSet::parse(&[bad]).is_err(), "{bad}");
            let asked = Member::new("workers", 0, 0);
            let ranges = ["workers/0/0-7", bad];
            assert!(is_in_ranges(&ranges, &asked).is_err(), "{bad}");
        }
    }
}
