#!/usr/bin/env bash
# Runs a program in PID, network, mount and cgroup namespaces of its own, with a cgroup and a TMPDIR of its own.
# When the program ends, or this process is killed, the kernel ends all processes and removes all links and mounts.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "nodes need root" >&2; exit 1; }
grep -q ' cgroup [^ ]*memory' /proc/self/mounts || { echo "nodes need cgroups v1" >&2; exit 1; }
[ -z "${KUBEBUILDER_ASSETS:-}${LOCKSTEP_KUBECONFIG:-}" ] || {
  echo "nodes need a control plane of their own: unset KUBEBUILDER_ASSETS and LOCKSTEP_KUBECONFIG" >&2
  exit 1
}
for tool in unshare ip runc; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: make node-packages" >&2; exit 1; }
done
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
name=lockstep-$$
find "${TMPDIR:-/tmp}" -mindepth 3 -maxdepth 3 -path '*/lockstep-nodes-*/kept' -mmin +1440 2>/dev/null |
  while read -r kept; do rm -rf "${kept%/*/kept}"; done
TMPDIR=$(mktemp -d -t lockstep-nodes-XXXXXX)
export TMPDIR LOCKSTEP_INSIDE=1
# After the last process with this pipe: removes the folder, unless a test that failed keeps it, and the cgroups.
exec 9> >(
  trap '' INT TERM HUP
  cat >/dev/null
  compgen -G "$TMPDIR/*/kept" >/dev/null || rm -rf "$TMPDIR"
  for try in $(seq 100); do
    find /sys/fs/cgroup -depth -type d \( -path "*/$name" -o -path "*/$name/*" \) -exec rmdir {} + 2>/dev/null && break
    sleep 0.1
  done
)
# shellcheck disable=SC2016
exec "$here/cgroup.sh" "$name" unshare --cgroup --net --mount --pid --fork --kill-child --mount-proc -- sh -c '
  sh "$0/hierarchies.sh"
  trap "exit 130" INT TERM
  ip link set lo up
  "$@" & wait $!' "$here" "$@"
