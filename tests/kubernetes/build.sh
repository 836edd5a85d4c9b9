#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster from the Go module proxy, once per list of packages and
# versions, and prints the folder that holds them as the last line. Needs Go and flock.
#
#   build.sh         etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
#   build.sh nodes   kubelet, containerd with shim and ctr, CNI plugins, CoreDNS. runc is the distribution's.
#   build.sh tidy    writes go.mod and go.sum for KUBERNETES
#
# KUBERNETES=1.36.3 builds that version. KUBEBUILDER_ASSETS, the variable of envtest, names a folder
# that is used instead of the control plane built here. LOCKSTEP_CACHE replaces ~/.cache/lockstep.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# Without cgo the programs start on every Linux. -w and -s drop debug information.
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
# The version of go.mod.
pinned=$(sed -nE 's|^\tk8s.io/kubernetes v([0-9.]+).*|\1|p' go.mod)
version=${KUBERNETES:-$pinned}
what=${1:-control-plane}
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/kubernetes
# Folders that no run has used for this long are removed.
keep_days=14

say() { echo "kubernetes $version: $*" >&2; }

# Writes a module for $version: every program as a tool, and the libraries of Kubernetes' repository
# (`staging/`) in the version that was published with it.
write_module() {
  local own library=v0.${version#*.}
  own=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's|.*"GoMod": "\(.*\)".*|\1|p')
  printf 'module lockstep/tests/kubernetes\n\ngo %s\n' "$(sed -n 's/^go //p' "$own")" >go.mod
  # shellcheck disable=SC2046
  go mod edit -require="k8s.io/kubernetes@v$version" \
    $(sed -n "s|^\t\(k8s.io/[a-z0-9-]*\) => ./staging/.*|-replace=\1=\1@$library|p" "$own") \
    $(printf -- '-tool=k8s.io/kubernetes/cmd/%s ' kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet) \
    -require=github.com/coredns/coredns@v1.14.6 \
    -tool=go.etcd.io/etcd/server/v3 \
    -require="go.etcd.io/etcd/server/v3@$(sed -nE 's|^\tgo.etcd.io/etcd/client/v3 (v[0-9.]+).*|\1|p' "$own")"
  go mod tidy
}

# Runs a command that names each step on standard error, and reports every 10 s which step it is at.
with_progress() {
  local log pid started=$SECONDS
  log=$(mktemp)
  "$@" 2>"$log" &
  pid=$!
  # shellcheck disable=SC2064
  trap "kill $pid 2>/dev/null; rm -f '$log'" EXIT
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if [ $(((SECONDS - started) % 10)) = 9 ]; then
      say "$((SECONDS - started)) s, $(wc -l <"$log") steps, at $(tail -n 1 "$log")"
    fi
  done
  wait "$pid" || { tail -n 40 "$log" >&2; exit 1; }
  rm -f "$log"
  trap - EXIT
}

stamp=k8s.io/component-base/version minor=${version#*.}
flags=(-ldflags "-s -w -X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}")
# Packages of the module here, and packages of other modules with their versions.
packages=() others=()
case $what in
  tidy) with_progress write_module; exit ;;
  control-plane)
    if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then echo "$KUBEBUILDER_ASSETS"; exit; fi
    packages=(k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubectl} go.etcd.io/etcd/server/v3) ;;
  nodes)
    packages=(k8s.io/kubernetes/cmd/kubelet ./dns)
    others=(github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@v2.4.2
      github.com/containernetworking/plugins/plugins/{main/bridge,main/loopback,ipam/host-local}@v1.10.0) ;;
  *) echo "$0: control-plane, nodes or tidy, not $what" >&2; exit 2 ;;
esac

build() { # into folder $1
  local other
  for other in "${others[@]}"; do
    GOBIN=$1 with_progress go install -v -ldflags "-s -w" "$other"
  done
  if [ "$version" != "$pinned" ]; then
    # Another version has a module of its own, beside the programs.
    mkdir "$1/module"
    [ "$what" = control-plane ] || cp -r dns "$1/module"
    cd "$1/module"
    with_progress write_module
  fi
  with_progress go build -v -o "$1/" "${flags[@]}" "${packages[@]}"
  # Programs are named for the folders of their packages.
  if [ "$what" = control-plane ]; then mv "$1/server" "$1/etcd"; else mv "$1/dns" "$1/coredns"; fi
}

for tool in go flock; do
  command -v "$tool" >/dev/null || { echo "$0: $tool is missing" >&2; exit 1; }
done
content=$({ go env GOVERSION GOOS GOARCH; echo "$GOFLAGS" "${flags[@]}" "${packages[@]}" "${others[@]}"; cat go.mod go.sum dns/main.go; } |
  sha256sum | cut -c1-12)
out=$cache/$what-$version-$content
mkdir -p "$cache"
exec 9>"$cache/lock"
until flock -w 10 9; do say "waiting for another build"; done
if [ ! -d "$out" ]; then
  say "building $what with $(go env GOVERSION)"
  rm -rf "$out.new"
  mkdir "$out.new"
  (build "$out.new")
  mv "$out.new" "$out"
  say "built in $SECONDS s"
fi
touch "$out"
find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +"$keep_days" -exec rm -rf {} +
echo "$out"
