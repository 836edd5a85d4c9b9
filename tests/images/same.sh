#!/usr/bin/env bash
# same.sh FIRST SECOND: whether the images in two folders of `make image` have the same digests, which it prints.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
digests() { # of a folder with layouts: name, processor and digest of each manifest
  local index
  for index in "$1"/*/index.json; do
    [ -f "$index" ] || { echo "no images in $1" >&2; return 1; }
    tests/images/platforms.sh "$(dirname "$index")" | sed "s/^/$(basename "$(dirname "$index")") /"
  done
}
first=$(digests "$1")
second=$(digests "$2")
printf '%s\n' "$second"
if [ "$first" != "$second" ]; then
  diff <(printf '%s\n' "$first") <(printf '%s\n' "$second") >&2 || true
  echo "the same commit gave other images in another folder" >&2
  exit 1
fi
echo "the same images twice"
