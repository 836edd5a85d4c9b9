#!/usr/bin/env bash
# Builds Kueue from the Go module proxy, once per version, and prints the folder with the program and its manifests as the last line.
# Needs Go and flock.
set -euo pipefail
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
module=sigs.k8s.io/kueue@v0.17.0
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/kueue
out=$cache/${module#*@}-$(go env GOVERSION)
mkdir -p "$out"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$out/kueue" ]; then
  echo "kueue: building $module (minutes the first time)" >&2
  go mod download "$module"
  rm -rf "$out/config"
  cp -r "$(go env GOMODCACHE)/$module/config" "$out/config"
  chmod -R u+w "$out/config"
  GOBIN=$out go install -trimpath -ldflags "-s -w" "${module%@*}/cmd/kueue@${module#*@}"
fi
echo "$out"
