#!/usr/bin/env bash
# Prints what the layout of an image (a folder of `make image`) names: the digest of its index, then processor and digest of each
# manifest in that.
set -euo pipefail
cd "$1"
digest=$(grep -oE 'sha256:[0-9a-f]{64}' index.json)
echo "index $digest"
grep -oE '"digest":"[^"]*","mediaType":"[^"]*","platform":\{"architecture":"[^"]*"' "blobs/${digest/://}" |
  sed -E 's/"digest":"([^"]*)".*"architecture":"([^"]*)"/\2 \1/'
