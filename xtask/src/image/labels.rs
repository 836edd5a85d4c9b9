//! Metadata of an image under the keys of the OCI image specification: labels of its configuration
//! for runtimes, annotations of its manifest for registries.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = env!("CARGO_PKG_REPOSITORY");
const LICENCE: &str = env!("CARGO_PKG_LICENSE");
const PREFIX: &str = "org.opencontainers.image.";
pub(super) const CREATED: &str = "org.opencontainers.image.created";

pub type Labels = BTreeMap<String, String>;

/// The built commit. Without git, `LOCKSTEP_COMMIT` and `LOCKSTEP_COMMIT_DATE` set it, as for the
/// programs' `--version`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Full hash.
    pub revision: Option<String>,
    /// Time of the commit in RFC 3339, UTC. The build time would change the digest.
    pub time: Option<String>,
}

impl Commit {
    pub fn of(root: &Path) -> Self {
        let said = |variable| std::env::var(variable).ok();
        // Ignores a repository that contains an unpacked archive.
        let top = git(root, &["rev-parse", "--show-toplevel"]);
        let own =
            top.is_some_and(|top| Path::new(&top).canonicalize().ok() == root.canonicalize().ok());
        let git = |args: &[&str]| own.then(|| git(root, args)).flatten();
        let date = said("LOCKSTEP_COMMIT_DATE").map(|day| format!("{day}T00:00:00Z"));
        let format = ["--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"];
        Self {
            revision: said("LOCKSTEP_COMMIT").or_else(|| git(&["rev-parse", "HEAD"])),
            time: date.or_else(|| git(&[&["log", "-1"], &format[..]].concat())),
        }
    }
}

pub fn labels(title: &str, description: &str, version: &str, commit: &Commit) -> Labels {
    let known = [
        ("title", Some(title)),
        ("description", Some(description)),
        ("version", Some(version)),
        ("source", Some(SOURCE)),
        ("licenses", Some(LICENCE)),
        ("revision", commit.revision.as_deref()),
        ("created", commit.time.as_deref()),
    ];
    let known = known
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    known
        .map(|(key, value)| (format!("{PREFIX}{key}"), value.to_owned()))
        .collect()
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.current_dir(root).env("TZ", "UTC").args(args);
    let out = command.output().ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn an_image_says_what_it_is_and_of_which_commit() {
        let commit = Commit {
            revision: Some("abc".into()),
            time: Some("2026-11-23T07:25:26Z".into()),
        };
        let labels = labels("lockstep-run", "The supervisor", "v1", &commit);
        let keys: Vec<&str> = labels
            .keys()
            .map(|k| k.trim_start_matches(PREFIX))
            .collect();
        assert_eq!(
            keys,
            [
                "created",
                "description",
                "licenses",
                "revision",
                "source",
                "title",
                "version"
            ]
        );
        assert_eq!(labels[CREATED], "2026-11-23T07:25:26Z");
        assert!(labels.values().all(|value| !value.is_empty()), "{labels:?}");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let labels = labels("a", "b", "v1", &Commit::default());
        assert!(!labels.contains_key(CREATED), "{labels:?}");
        assert_eq!(labels.len(), 5);
    }

    #[test]
    fn the_time_is_that_of_the_commit() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let Some(time) = git(root, &["log", "-1", "--format=%ct"]) else {
            return;
        };
        let said = Commit::of(root);
        let seconds = said.time.unwrap().parse::<Timestamp>().unwrap();
        assert_eq!(seconds.as_second().to_string(), time);
        assert_eq!(said.revision, git(root, &["rev-parse", "HEAD"]));
        // A folder inside a repository, but not its root.
        assert_eq!(Commit::of(&root.join("docs")), Commit::default());
    }
}
