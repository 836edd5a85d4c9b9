#!/usr/bin/env bash
# Builds the test control plane once per content of this module and puts a usable
# kubectl beside it. Prints the folder with `plane` and `kubectl` as the last line.
#
# Needs Go and the module proxy (or a filled module cache), no C compiler.
# Several calls may run at once: the first builds, the others wait for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false"
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/plane
# The libraries' own version, so that `kubectl version` compares like with like.
kube=v1.37.2

sources() { # every file that can change the binaries, in a fixed order
  find . -type f \( -name '*.go' -o -name 'go.*' -o -name '*.sh' \) \
    ! -name '*_test.go' ! -name 'zz_generated.*' -print0 | LC_ALL=C sort -z
}
digest() { { go env GOVERSION GOOS GOARCH; sources | xargs -0 sha256sum; } | sha256sum | cut -c1-16; }

usable_kubectl() { # path of a kubectl >= 1.30 on PATH, else nothing
  local path minor
  path=$(command -v kubectl) || return 0
  minor=$("$path" version --client 2>/dev/null | sed -nE 's/^Client Version: v1\.([0-9]+).*/\1/p')
  if [ "${minor:-0}" -ge 30 ]; then echo "$path"; fi
}

build_plane() { # from a copy, so that generated code never lands in the tree
  local copy
  copy=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$copy'" EXIT
  sources | xargs -0 cp --parents -t "$copy"
  generated=$cache/openapi-$(sha256sum go.sum openapi/generate.sh | sha256sum | cut -c1-16)
  if [ ! -d "$generated" ]; then
    bash "$copy/openapi/generate.sh"
    mkdir -p "$generated.new"
    cp "$copy"/openapi/zz_generated.* "$generated.new/"
    mv "$generated.new" "$generated"
  fi
  cp "$generated"/zz_generated.* "$copy/openapi/"
  (cd "$copy" && go build -trimpath -ldflags "-s -w" -o "$1" ./cmd/plane)
}

build_kubectl() {
  local stamp=k8s.io/component-base/version
  go build -trimpath -o "$1" \
    -ldflags "-s -w -X $stamp.gitVersion=$kube -X $stamp.gitMajor=1 -X $stamp.gitMinor=37" ./cmd/kubectl
}

out=$cache/$(digest)
mkdir -p "$out"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$out/plane" ]; then
  echo "plane: building (minutes the first time)" >&2
  build_plane "$out/plane.new"
  mv "$out/plane.new" "$out/plane"
fi
if [ ! -x "$out/kubectl" ]; then
  found=$(usable_kubectl)
  if [ -n "$found" ]; then
    ln -sfn "$found" "$out/kubectl"
  else
    echo "plane: no kubectl >= 1.30 on PATH, building one" >&2
    build_kubectl "$out/kubectl.new"
    mv "$out/kubectl.new" "$out/kubectl"
  fi
fi
echo "$out"
