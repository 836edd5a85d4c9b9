//! Fields of origin kinds, and what the conversion does with each.

use std::fmt::{self, Display};

/// What the conversion does with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The value is copied to a field of the workload, given as a JSON pointer.
    Copied(&'static str),
    /// The value is converted as described.
    Mapped(&'static str),
    /// A comment at a part of the workload says what to do. The pointer starts at the group of the
    /// field, or at the workload if the field belongs to no group.
    Noted(&'static str, &'static str),
    /// The conversion fails with this reason.
    Refused(&'static str),
    /// The field has no meaning in a new object.
    Omitted(&'static str),
}

/// A field of an origin kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Path below its part. `*`: any key. `[]`: an element of a list. `**`: everything below.
    pub path: &'static str,
    pub fate: Fate,
}

pub const fn copied(path: &'static str, to: &'static str) -> Field {
    let fate = Fate::Copied(to);
    Field { path, fate }
}

pub const fn mapped(path: &'static str, how: &'static str) -> Field {
    let fate = Fate::Mapped(how);
    Field { path, fate }
}

pub const fn noted(path: &'static str, at: &'static str, advice: &'static str) -> Field {
    let fate = Fate::Noted(at, advice);
    Field { path, fate }
}

pub const fn refused(path: &'static str, why: &'static str) -> Field {
    let fate = Fate::Refused(why);
    Field { path, fate }
}

pub const fn omitted(path: &'static str, why: &'static str) -> Field {
    let fate = Fate::Omitted(why);
    Field { path, fate }
}

/// Fields that several kinds or places share, and where they are. The first match decides.
#[derive(Clone, Copy, Debug)]
pub struct FieldsAt {
    pub at: &'static str,
    pub fields: &'static [Field],
}

pub const fn part(at: &'static str, fields: &'static [Field]) -> FieldsAt {
    FieldsAt { at, fields }
}

/// A step from an object into a field or an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    Key(String),
    Index(usize),
}

/// A path in a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<PathStep>);

impl Path {
    #[must_use]
    pub fn then(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// The path as a JSON pointer.
    pub fn pointer(&self) -> String {
        let step = |step: &PathStep| match step {
            PathStep::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            PathStep::Index(index) => format!("/{index}"),
        };
        self.0.iter().map(step).collect()
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if n == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// What a table says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Field(Fate),
    /// Fields of the table are below the path.
    Inner,
    Unknown,
}

pub fn find_entry(table: &[FieldsAt], path: &Path) -> Entry {
    let mut inner = false;
    for part in table {
        for field in part.fields {
            match compare(&full(part, field), &path.0) {
                Match::Exact => return Entry::Field(field.fate),
                Match::Prefix => inner = true,
                Match::No => {}
            }
        }
    }
    if inner { Entry::Inner } else { Entry::Unknown }
}

/// Path of a field from the root of the document.
pub fn full(part: &FieldsAt, field: &Field) -> String {
    if part.at.is_empty() {
        field.path.to_owned()
    } else {
        format!("{}.{}", part.at, field.path)
    }
}

enum Match {
    Exact,
    Prefix,
    No,
}

fn compare(pattern: &str, path: &[PathStep]) -> Match {
    let pattern = pattern.replace("[]", ".[]");
    let mut expected = pattern.split('.');
    for step in path {
        let fits = match (expected.next(), step) {
            (Some("**"), _) => return Match::Exact,
            (Some("[]"), PathStep::Index(_)) | (Some("*"), PathStep::Key(_)) => true,
            (Some(expected), PathStep::Key(key)) => expected == key,
            _ => false,
        };
        if !fits {
            return Match::No;
        }
    }
    match expected.next() {
        None => Match::Exact,
        Some(_) => Match::Prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[FieldsAt] = &[
        part(
            "spec.jobs[].template",
            &[omitted("name", "none"), mapped("**", "kept")],
        ),
        part("", &[copied("spec.suspend", "/spec/suspend")]),
    ];

    fn entry(steps: &[&str]) -> Entry {
        let step = |s: &&str| match s.parse() {
            Ok(index) => PathStep::Index(index),
            Err(_) => PathStep::Key((*s).to_owned()),
        };
        find_entry(TABLE, &Path(steps.iter().map(step).collect()))
    }

    #[test]
    fn the_first_matching_field_decides() {
        let name = ["spec", "jobs", "3", "template", "name"];
        assert_eq!(entry(&name), Entry::Field(Fate::Omitted("none")));
        let below = ["spec", "jobs", "0", "template", "a", "b"];
        assert_eq!(entry(&below), Entry::Field(Fate::Mapped("kept")));
    }

    #[test]
    fn a_path_above_fields_is_inner_and_any_other_path_is_unknown() {
        assert_eq!(entry(&["spec", "jobs", "0", "template"]), Entry::Inner);
        assert_eq!(entry(&["spec", "jobs", "x"]), Entry::Unknown);
        assert_eq!(entry(&["spec", "suspended"]), Entry::Unknown);
    }
}
