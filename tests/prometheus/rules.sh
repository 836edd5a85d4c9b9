#!/usr/bin/env bash
# Checks the rules with promtool, and plays their tests: each alert fires, and no other with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
promtool=$(tests/prometheus/build.sh | tail -n 1)/promtool
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${CARGO:-cargo}" run -q -p xtask -- rules "$folder"
"$promtool" check rules "$folder/rules.json"
"$promtool" test rules "$folder/tests.json"
