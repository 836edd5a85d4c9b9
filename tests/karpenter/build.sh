#!/usr/bin/env bash
# Builds Karpenter with its provider of nodes without machines (kwok) from the Go module proxy, once per version, and prints the folder with
# the program and its definitions as the last line. Needs Go and flock.
set -euo pipefail
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
module=sigs.k8s.io/karpenter@v1.14.0
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/karpenter
out=$cache/${module#*@}-$(go env GOVERSION)
mkdir -p "$out/crds"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$out/karpenter" ]; then
  echo "karpenter: building $module (minutes the first time)" >&2
  GOBIN=$out go install -trimpath -ldflags "-s -w" "${module%@*}/kwok@${module#*@}"
  source=$(go env GOMODCACHE)/$module
  install -m 644 "$source"/pkg/apis/crds/*.yaml "$source"/kwok/apis/crds/*.yaml "$out/crds"
  mv "$out/kwok" "$out/karpenter"
fi
echo "$out"
