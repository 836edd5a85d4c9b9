#!/usr/bin/env bash
# The chart under Helm 3 and Helm 4: both accept it, and render the same objects.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
chart=$here/../../charts/lockstep
three=$("$here/build.sh" v3 | tail -n 1)
four=$("$here/build.sh" v4 | tail -n 1)
rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for values in \
  manager.replicas=2 \
  agents.enabled=false,crds.enabled=false \
  manager.replicas=3,networkPolicy.enabled=true,monitoring.prometheus.enabled=true; do
  for helm in "$three" "$four"; do
    "$helm" lint --strict --quiet --set "$values" "$chart"
    "$helm" template lockstep "$chart" --namespace lockstep-system --kube-version 1.37.0 --set "$values" |
      sed '/^$/d' >"$rendered/$(basename "$(dirname "$helm")")" # Helm 4 adds empty lines.
  done
  cmp "$rendered/v3" "$rendered/v4"
  echo "the same objects: $values"
done
if "$three" lint --strict --quiet --set manager.replica=2 "$chart" >"$rendered/lint" 2>&1; then echo "Helm 3 ignores the schema" >&2; exit 1; fi
