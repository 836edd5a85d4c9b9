#!/usr/bin/env bash
# Reads the images in target/images (`make image`) with programs of others: skopeo inspects layouts and archives and
# copies them, into another layout and into a registry on this machine; crane validates what the registry holds.
# Digests stay what they are on the way. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
crane=$(tests/images/crane.sh | tail -n 1)
work=$(mktemp -d)
export TMPDIR=$work DOCKER_CONFIG=$work REGISTRY_AUTH_FILE=$work/auth.json
registry=
trap 'if [ -n "$registry" ]; then kill "$registry"; wait "$registry" || true; fi; rm -rf "$work"' EXIT

fail() { echo "$*" >&2; exit 1; }
same() { # what is compared, expected, found
  [ "$2" = "$3" ] || fail "$1: expected ${2:-nothing}, found ${3:-nothing}"
}
digest() { skopeo inspect --format '{{.Digest}}' "$@"; }
label() { # image, key
  skopeo inspect --format "{{index .Labels \"org.opencontainers.image.$2\"}}" "$1"
}

: >"$work/registry.log"
"$crane" registry serve --address 127.0.0.1:0 >>"$work/registry.log" 2>&1 &
registry=$!
for ((tries = 0; tries < 100; tries++)); do
  port=$(sed -nE 's/.*serving on port ([0-9]+).*/\1/p' "$work/registry.log")
  [ -z "$port" ] || break
  kill -0 "$registry" || fail "no registry: $(cat "$work/registry.log")"
  sleep 0.1
done
[ -n "$port" ] || fail "no registry after 10 s: $(cat "$work/registry.log")"

checked=0
for index in target/images/*/index.json; do
  [ -f "$index" ] || fail "no images: run make image"
  layout=$(dirname "$index")
  name=$(basename "$layout")
  tag=$(sed -nE 's/.*"org.opencontainers.image.ref.name":"([^"]*)".*/\1/p' "$index")
  expected=$(grep -oE 'sha256:[0-9a-f]{64}' "$index")
  same "$name: layout" "$expected" "$(digest "oci:$layout:$tag")"
  same "$name: archive" "$expected" "$(digest "oci-archive:$layout.tar:$tag")"
  same "$name: title" "$name" "$(label "oci:$layout:$tag" title)"
  same "$name: version" "$tag" "$(label "oci:$layout:$tag" version)"
  for key in revision created source licenses description; do
    [ -n "$(label "oci:$layout:$tag" "$key")" ] || fail "$name: no label $key"
  done

  skopeo copy --quiet "oci:$layout:$tag" "oci:$work/$name:$tag"
  same "$name: copied layout" "$expected" "$(digest "oci:$work/$name:$tag")"

  remote=127.0.0.1:$port/$name
  skopeo copy --quiet --dest-tls-verify=false "oci:$layout:$tag" "docker://$remote:$tag"
  same "$name: registry, by skopeo" "$expected" "$(digest --tls-verify=false "docker://$remote:$tag")"
  same "$name: registry, by crane" "$expected" "$("$crane" digest "$remote:$tag")"
  same "$name: manifest" "$expected" "sha256:$("$crane" manifest "$remote@$expected" | sha256sum | cut -d ' ' -f 1)"
  "$crane" validate --remote "$remote@$expected" >"$work/validate.log" 2>&1 || fail "$name: $(cat "$work/validate.log")"
  echo "$name $expected"
  checked=$((checked + 1))
done
echo "$checked images are the same in layouts, archives and a registry"
