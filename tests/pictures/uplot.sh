#!/usr/bin/env bash
# Puts uPlot, which draws lines, into the cache and prints its folder. Needs npm and its registry the first time.
set -euo pipefail
version=1.6.32
sha512=2883159c6ebccefbb95d751b0b82d010f9e1c0ec41b8bc96d401eda66e882935c89a46cb824332fa369b8cb8122cc6ac36e186cd09bf7a9ded3a4c93c6989023
out=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/uplot/$version
if [ ! -f "$out/uPlot.iife.min.js" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  (cd "$folder" && npm pack --silent "uplot@$version" >&2 && echo "$sha512  uplot-$version.tgz" | sha512sum --check --quiet - && tar xzf "uplot-$version.tgz")
  mkdir -p "$out"
  cp "$folder"/package/dist/uPlot.iife.min.js "$folder"/package/dist/uPlot.min.css "$folder"/package/LICENSE "$out"
fi
echo "$out"
