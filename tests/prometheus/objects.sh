#!/usr/bin/env bash
# Whether Prometheus' operator would read the objects of its component: strictly, by its own types. A field that they do not have
# is shown to it first, so that silence means something. Needs Go and the module proxy the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd tests/prometheus/operator && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$folder/read" .)
for object in pod_monitor prometheus_rule service_monitor; do
  file=config/components/prometheus/$object.yaml
  "$folder/read" "$file"
  sed -E 's/^spec:/spec:\n  mistake: 1/' "$file" >"$folder/mistake.yaml"
  if "$folder/read" "$folder/mistake.yaml" 2>/dev/null; then
    echo "$file: a field that does not exist was taken" >&2
    exit 1
  fi
done
