#!/usr/bin/env bash
# Spoils copies of the images in target/images (`make image`), one mistake in each, and wants the checks beside this file to
# refuse every one of them, in words that name it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
images=$work/images
refused=0

copy() { rm -rf "$images" && cp -r target/images "$images"; }
index() { sed -n 's/^index sha256://p' <<<"$(tests/images/platforms.sh "$images/$1")"; } # image: hash of its index
refuse() { # what is wrong, what is to be said, command
  local wrong=$1 said=$2
  shift 2
  if "$@" >"$work/said" 2>&1; then
    echo "not noticed: $wrong" >&2
    exit 1
  fi
  grep -qF -- "$said" "$work/said" || { echo "$wrong: refused for something else:" >&2; cat "$work/said" >&2; exit 1; }
  echo "refused: $wrong"
  refused=$((refused + 1))
}
others() { refuse "$1" "$2" tests/images/others.sh "$images"; }
# The layout of an image again, with another text in the configuration of its first processor: new blobs, and so new digests.
change() { # image, expression of sed
  local layout=$images/$1 digest old
  digest=$(sed -nE 's/^(amd64|arm64) sha256://p' <<<"$(tests/images/platforms.sh "$layout")" | head -n 1)
  old=$(grep -oE '"config":\{[^}]*sha256:[0-9a-f]{64}' "$layout/blobs/sha256/$digest" | grep -oE '[0-9a-f]{64}$')
  replace "$layout" "$old" "$2" "$digest" "$(index "$1")" index.json
  tar -C "$layout" --sort=name -cf "$layout.tar" .
}
replace() { # layout, hash of a blob, expression of sed, hashes of what names it, up to the file index.json
  local layout=$1 old=$2 expression=$3 blobs=$1/blobs/sha256 new size
  shift 3
  size=$(stat -c %s "$blobs/$old")
  sed -E "$expression" "$blobs/$old" >"$work/blob"
  new=$(sha256sum "$work/blob" | cut -d ' ' -f 1)
  [ "$old" != "$new" ] || { echo "nothing changed by $expression" >&2; exit 1; }
  mv "$work/blob" "$blobs/$new"
  rm "$blobs/$old"
  local rename="s/$old/$new/; s/(\"size\":)$size([^0-9])/\\1$(stat -c %s "$blobs/$new")\\2/"
  if [ "$1" = index.json ]; then
    sed -i -E "$rename" "$layout/index.json"
  else
    local named=$1
    shift
    replace "$layout" "$named" "$rename" "$@"
  fi
}

copy
tests/images/others.sh "$images" >/dev/null || { echo "the images are refused as they are" >&2; exit 1; }
change lockstep-run 's/"architecture":/"architecture": /'
tests/images/others.sh "$images" >/dev/null || { echo "an image with another digest, and right, is refused" >&2; exit 1; }
refuse "an image that differs" "the same commit gave other images" tests/images/same.sh target/images "$images"
copy && rm -r "$images/lockstep-run"
refuse "an image that is missing" "the same commit gave other images" tests/images/same.sh target/images "$images"

copy && cp "$images/lockstep-run.tar" "$images/lockstep-agent.tar"
others "the archive of another image" "lockstep-agent: archive: expected"
copy && rm -r "$images"/*/
others "no image at all" "no images: run make image"
copy && change lockstep-agent 's/(image.title":")lockstep-agent/\1lockstep-run/'
others "the title of another image" "title: expected lockstep-agent, found lockstep-run"
copy && change lockstep-agent 's/(image.version":")/\1x/'
others "another version than its tag" "version: expected"
copy && change lockstep-agent 's/image.licenses/image.licence/'
others "a missing label" "no label licenses"
copy && change lockstep-agent 's/sha256:[0-9a-f]{64}/sha256:0000000000000000000000000000000000000000000000000000000000000000/'
others "a layer that is not what the configuration says" "lockstep-agent for"
copy && blob=$images/lockstep-run/blobs/sha256/$(index lockstep-run) && printf ' ' >>"$blob"
others "a blob that is not what its digest says" "lockstep-run"
echo "$refused spoilt images refused"
