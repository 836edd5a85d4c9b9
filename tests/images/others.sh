#!/usr/bin/env bash
# others.sh [FOLDER]: reads the images in target/images (`make image`), or in FOLDER, with programs of others: skopeo inspects layouts and archives and
# copies them, into another layout and into a registry on this machine; crane validates what the registry holds and takes
# the programs out of it, which are run, those for another processor by qemu. Digests stay what they are on the way, and
# programs say the same on each processor. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
images=${1:-target/images}
crane=$(tests/images/crane.sh | tail -n 1)
work=$(mktemp -d)
export TMPDIR=$work DOCKER_CONFIG=$work REGISTRY_AUTH_FILE=$work/auth.json
registry=
trap 'if [ -n "$registry" ]; then kill "$registry"; wait "$registry" || true; fi; rm -rf "$work"' EXIT

fail() { echo "$*" >&2; exit 1; }
same() { # what is compared, expected, found
  [ "$2" = "$3" ] || fail "$1: expected ${2:-nothing}, found ${3:-nothing}"
}
sha256() { echo "sha256:$(sha256sum | cut -d ' ' -f 1)"; }
# Without --raw skopeo takes the manifest of this machine's processor, which need not be there.
digest() { skopeo inspect --raw "$@" | sha256; }
label() { # processor, image, key
  skopeo --override-arch "$1" inspect --format "{{index .Labels \"org.opencontainers.image.$3\"}}" "$2"
}
own=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
run() { # processor, program, arguments
  local processor=$1 emulator=
  shift
  if [ "$processor" != "$own" ]; then
    emulator=qemu-$(echo "$processor" | sed 's/amd64/x86_64/; s/arm64/aarch64/')-static
    command -v "$emulator" >/dev/null || fail "$emulator is missing: make container-packages"
  fi
  $emulator "$@" </dev/null
}
says() { # processor, name, program: what there is to compare with other processors
  case $2 in
    lockstep-manager) run "$1" "$3" --version && run "$1" "$3" --print-config ;;
    # It has no words but for what it lacks.
    lockstep-trainer) run "$1" "$3" 2>&1 || [ $? = 2 ] ;;
    *) run "$1" "$3" --version ;;
  esac
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
for index in "$images"/*/index.json; do
  [ -f "$index" ] || fail "no images: run make image"
  layout=$(dirname "$index")
  name=$(basename "$layout")
  tag=$(sed -nE 's/.*"org.opencontainers.image.ref.name":"([^"]*)".*/\1/p' "$index")
  platforms=$(tests/images/platforms.sh "$layout")
  expected=$(sed -n 's/^index //p' <<<"$platforms")
  same "$name: layout" "$expected" "$(digest "oci:$layout:$tag")"
  same "$name: archive" "$expected" "$(digest "oci-archive:$layout.tar:$tag")"

  skopeo copy --quiet --all "oci:$layout:$tag" "oci:$work/$name:$tag"
  same "$name: copied layout" "$expected" "$(digest "oci:$work/$name:$tag")"
  rm -r "${work:?}/$name"

  remote=127.0.0.1:$port/$name
  skopeo copy --quiet --all --dest-tls-verify=false "oci:$layout:$tag" "docker://$remote:$tag"
  same "$name: registry, by skopeo" "$expected" "$(digest --tls-verify=false "docker://$remote:$tag")"
  same "$name: registry, by crane" "$expected" "$("$crane" digest "$remote:$tag")"
  same "$name: index" "$expected" "$("$crane" manifest "$remote@$expected" | sha256)"
  echo "$name $expected"

  said=
  while read -r processor expected; do
    what="$name for $processor"
    same "$what: of the index" "$expected" "$("$crane" digest --platform "linux/$processor" "$remote:$tag")"
    same "$what: manifest" "$expected" "$("$crane" manifest "$remote@$expected" | sha256)"
    "$crane" validate --remote "$remote@$expected" >"$work/validate.log" 2>&1 || fail "$what: $(cat "$work/validate.log")"
    same "$what: title" "$name" "$(label "$processor" "oci:$layout:$tag" title)"
    same "$what: version" "$tag" "$(label "$processor" "oci:$layout:$tag" version)"
    for key in revision created source licenses description; do
      [ -n "$(label "$processor" "oci:$layout:$tag" "$key")" ] || fail "$what: no label $key"
    done
    "$crane" export --platform "linux/$processor" "$remote:$tag" - | tar -xC "$work" usr/bin
    says "$processor" "$name" "$work/usr/bin/$name" >"$work/said" || fail "$what: $(cat "$work/said")"
    [ -s "$work/said" ] || fail "$what: it says nothing"
    same "$what: what it says" "${said:-$(cat "$work/said")}" "$(cat "$work/said")"
    said=$(cat "$work/said")
    echo "  $processor $expected: $(head -n 1 "$work/said")"
    checked=$((checked + 1))
  done < <(sed '/^index /d' <<<"$platforms")
done
grep -q '^arm64 ' <<<"$platforms" || echo "arm64: skipped, the images are not for it: make image IMAGE_ARCH=amd64,arm64"
echo "$checked images are the same in layouts, archives and a registry, and run"
