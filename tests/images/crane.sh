#!/usr/bin/env bash
# Finds crane, which has a registry in it, on PATH or builds it once into the cache. Prints its path as the last line.
#
# Needs Go and the module proxy when it builds.
set -euo pipefail
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
version=v0.22.1
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/crane

if command -v crane; then exit; fi
out=$cache/$version-$(go env GOVERSION)
mkdir -p "$out"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$out/crane" ]; then
  echo "crane: building $version" >&2
  GOBIN=$out go install -trimpath -ldflags "-s -w" "github.com/google/go-containerregistry/cmd/crane@$version"
fi
echo "$out/crane"
