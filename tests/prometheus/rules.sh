#!/usr/bin/env bash
# Checks the rules with promtool, and plays their tests: each alert fires, and no other with it. Then each alert is made to fire
# never, one after the other, and its test has to notice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
promtool=$(tests/prometheus/build.sh | tail -n 1)/promtool
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${CARGO:-cargo}" run -q -p xtask -- rules "$folder"
"$promtool" check rules "$folder/rules.json"
"$promtool" test rules "$folder/tests.json"
sed -nE 's/^ *"alert": "(.*)",$/\1/p' "$folder/rules.json" >"$folder/alerts"
[ -s "$folder/alerts" ] || { echo "there are no alerts" >&2; exit 1; }
cp "$folder/rules.json" "$folder/good.json"
while read -r alert; do
  sed -E "/\"alert\": \"$alert\"/,/\"expr\"/s/\"expr\": \"(.*)\"/\"expr\": \"(\1) > 1e300\"/" "$folder/good.json" >"$folder/rules.json"
  "$promtool" check rules "$folder/rules.json" >/dev/null
  if "$promtool" test rules "$folder/tests.json" >"$folder/said" 2>&1; then
    echo "$alert never fires, and no test notices" >&2
    exit 1
  fi
  grep -qF "alertname=\"$alert\"" "$folder/said" || { cat "$folder/said" >&2; exit 1; }
done <"$folder/alerts"
echo "$(wc -l <"$folder/alerts") alerts that never fire were noticed"
