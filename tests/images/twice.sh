#!/usr/bin/env bash
# Builds the images of the last commit from nothing in a folder with another path, with the home, the cargo home and the
# umask of another user, and compares their digests with those in target/images (`make image`). What is not committed
# would make them differ. Becoming another user would need root and a toolchain that this user may read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "commit first: the second build is of the last commit" >&2; exit 1; }
commit=$(git rev-parse HEAD)
for layout in target/images/*/; do
  grep -rqa "image.revision\":\"$commit\"" "$layout/blobs" || { echo "$layout is of another commit than $commit: make image" >&2; exit 1; }
done
other=$(mktemp -d)
trap 'git worktree remove --force "$other/a/longer/path" || true; rm -rf "$other"' EXIT
git worktree add --quiet --detach "$other/a/longer/path"
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep} # zig
home=$other/home
mkdir -p "$home/.cargo"
# Downloaded crates, under another path.
ln -s "$(cd "${CARGO_HOME:-$HOME/.cargo}" && pwd)/registry" "$home/.cargo/registry"
(
  cd "$other/a/longer/path"
  umask 077
  LOCKSTEP_CACHE=$cache RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} HOME=$home CARGO_HOME=$home/.cargo USER=other LOGNAME=other \
    "${MAKE:-make}" --no-print-directory image
)
tests/images/same.sh target/images "$other/a/longer/path/target/images"
