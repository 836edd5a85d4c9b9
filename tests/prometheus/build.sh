#!/usr/bin/env bash
# Finds prometheus and promtool, 2.40 or newer, on PATH, or builds them once into the cache.
# Prints the folder with both as the last line. With --found nothing is built, and nothing printed where there are none.
#
# Needs Go and the module proxy when it builds. Service discovery is left out: the tests name their
# targets.
set -euo pipefail
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
version=v0.316.0 # 3.16
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/prometheus

usable() { # folder of a pair on PATH that is new enough, else nothing
  local path found major minor
  path=$(command -v prometheus) || return 0
  [ -x "$(dirname "$path")/promtool" ] || return 0
  found=$("$path" --version 2>&1 | sed -nE 's/^prometheus, version ([0-9]+)\.([0-9]+).*/\1 \2/p')
  read -r major minor <<<"${found:-0 0}"
  if [ "$major" -gt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -ge 40 ]; }; then dirname "$path"; fi
}

found=$(usable)
if [ -n "$found" ]; then echo "$found"; fi
if [ -n "$found" ] || [ "${1:-}" = --found ]; then exit; fi
out=$cache/$version-$(go env GOVERSION)
mkdir -p "$out"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$out/promtool" ]; then
  echo "prometheus: building $version (minutes the first time)" >&2
  for program in prometheus promtool; do
    GOBIN=$out go install -trimpath -ldflags "-s -w" -tags remove_all_sd,netgo \
      "github.com/prometheus/prometheus/cmd/$program@$version"
  done
fi
echo "$out"
