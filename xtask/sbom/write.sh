#!/usr/bin/env bash
# Writes a bill of materials (CycloneDX 1.5) for each program and processor into a folder: FOLDER PROCESSOR...
#
# cargo-cyclonedx lists the crates that are linked for a target. It is installed once into the cache.
set -euo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=0.5.9
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/cargo-cyclonedx
mkdir -p "$cache" "$out"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$cache/$version/bin/cargo-cyclonedx" ]; then
  echo "cargo-cyclonedx: installing $version" >&2
  "${CARGO:-cargo}" install --quiet --locked --root "$cache/$version" "cargo-cyclonedx@$version"
fi
# The tool writes a file beside each manifest of the workspace.
name=lockstep-sbom
clean() { find api operator tests xtask -name "$name.json" -delete; }
trap clean EXIT
for processor in "$@"; do
  case $processor in
    amd64) target=x86_64-unknown-linux-musl ;;
    arm64) target=aarch64-unknown-linux-musl ;;
    *) echo "$0: amd64 or arm64, not $processor" >&2; exit 2 ;;
  esac
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) "$cache/$version/bin/cargo-cyclonedx" cyclonedx --quiet --all --no-build-deps \
    --format json --spec-version 1.5 --target "$target" --override-filename "$name"
  while read -r program folder; do
    # Crates of the workspace are named by their folder on this machine.
    sed "s|$PWD|/src|g" "$folder/$name.json" >"$out/${program}_$processor.cdx.json"
  done <<'END'
lockstep-manager operator/manager
lockstep-agent operator/agent
lockstep-run operator/supervisor
lockstep-trainer tests/trainer
kubectl-lockstep operator/cli
END
done
