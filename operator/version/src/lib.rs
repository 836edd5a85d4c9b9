//! Version information of a build.

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Full hash of the source commit; `unknown` if built without git.
pub const COMMIT: &str = env!("LOCKSTEP_COMMIT");

/// Text of `--version` after the program's name. The date is the commit's, in UTC.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("LOCKSTEP_COMMIT"),
    ", ",
    env!("LOCKSTEP_COMMIT_DATE"),
    ")"
);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const COMMIT_DATE: &str = env!("LOCKSTEP_COMMIT_DATE");

    fn git(args: &[&str]) -> Option<String> {
        let mut command = Command::new("git");
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        let out = command.env("TZ", "UTC").args(args).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        out.status.success().then(|| text.trim().to_owned())
    }

    #[test]
    fn where_there_is_git_the_commit_and_its_date_are_those_of_git() {
        if git(&["rev-parse", "HEAD"]).is_none() {
            assert_eq!((COMMIT, COMMIT_DATE), ("unknown", "unknown"));
            return;
        }
        // A debug build may report an earlier commit.
        let format = ["--date=format-local:%Y-%m-%d", "--format=%H %cd"];
        let known = git(&[&["log", "-1", COMMIT], &format[..]].concat());
        assert_eq!(known, Some(format!("{COMMIT} {COMMIT_DATE}")));
        assert_eq!(LONG, format!("{VERSION} (commit {COMMIT}, {COMMIT_DATE})"));
    }
}
