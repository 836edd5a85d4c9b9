#!/usr/bin/env bash
# Builds containerd 2, its shim and ctr once into the cache, beside whatever the distribution has.
# Prints the folder with them as the last line, for LOCKSTEP_CONTAINERD. Needs Go and the module proxy.
set -euo pipefail
# runc stays the distribution's: the tests start what runs in containers by that.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
version=v2.4.2
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/containerd
out=$cache/$version-$(go env GOVERSION)
mkdir -p "$out"
exec 9>"$cache/lock"
flock 9
# The last that is built.
if [ ! -x "$out/ctr" ]; then
  echo "containerd: building $version (minutes the first time)" >&2
  for program in containerd containerd-shim-runc-v2 ctr; do
    GOBIN=$out go install -trimpath -ldflags "-s -w" \
      "github.com/containerd/containerd/v2/cmd/$program@$version"
  done
fi
echo "$out"
