#!/usr/bin/env bash
# Checks the rules with promtool, and runs their tests (rules_test.yaml): each alert fires, and no other with it. Then renames each alert,
# one after the other, and requires that its test fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
promtool=$(tests/prometheus/build.sh | tail -n 1)/promtool
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp tests/prometheus/rules_test.yaml "$folder"
# promtool reads the groups of a PrometheusRule, not the object.
sed '1,/^spec:$/d; s/^  //' config/components/prometheus/prometheus_rule.yaml >"$folder/good.yaml"
cp "$folder/good.yaml" "$folder/rules.yaml"
"$promtool" check rules "$folder/rules.yaml"
"$promtool" test rules "$folder/rules_test.yaml"
sed -nE 's/^ *- alert: //p' "$folder/good.yaml" >"$folder/alerts"
[ -s "$folder/alerts" ] || { echo "there are no alerts" >&2; exit 1; }
while read -r alert; do
  sed -E "s/^( *- alert: )$alert\$/\1Renamed/" "$folder/good.yaml" >"$folder/rules.yaml"
  if "$promtool" test rules "$folder/rules_test.yaml" >"$folder/output" 2>&1; then
    echo "no test notices that $alert does not fire" >&2
    exit 1
  fi
  grep -qF "alertname=\"$alert\"" "$folder/output" || { cat "$folder/output" >&2; exit 1; }
done <"$folder/alerts"
echo "$(wc -l <"$folder/alerts") alerts that do not fire were noticed"
