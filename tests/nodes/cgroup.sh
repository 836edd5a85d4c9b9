#!/usr/bin/env bash
# Runs a command in a cgroup of this name, below the root of every hierarchy: cgroup.sh NAME COMMAND...
set -euo pipefail
name=$1
shift
for hierarchy in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/self/mounts); do
  mkdir -p "$hierarchy/$name"
  # A cpuset without processors and memory accepts no process.
  for own in cpuset.cpus cpuset.mems; do
    [ ! -e "$hierarchy/$own" ] || cat "$hierarchy/$own" >"$hierarchy/$name/$own"
  done
  echo $$ >"$hierarchy/$name/cgroup.procs"
done
exec "$@"
