#!/usr/bin/env bash
# Checks the folder of a release by other programs: checksums, kustomize, Helm, bills of materials. Needs what `make release` needs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$1"
helm=$("$here/../helm/build.sh" | tail -n 1)
kubectl=$("$here/../kubernetes/build.sh" | tail -n 1)/kubectl
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
fail() { echo "$PWD: $*" >&2; exit 1; }

sha256sum --quiet --check SHA256SUMS
[ "$(wc -l <SHA256SUMS)" = "$(find . -type f ! -name SHA256SUMS | wc -l)" ] || fail "SHA256SUMS lacks a file"

"$kubectl" kustomize config/overlays/full | cmp - install.yaml
"$kubectl" kustomize config/overlays/default | cmp - install-no-agents.yaml
chart=$(echo lockstep-*.tgz)
"$helm" lint --strict "$chart" >"$temporary/lint" || fail "$(cat "$temporary/lint")"
"$helm" template lockstep "$chart" --namespace lockstep-system >"$temporary/chart.yaml"
while read -r image; do
  program=$(sed -E 's|.*/(lockstep-[a-z]+)@.*|\1|' <<<"$image")
  for file in install.yaml "$temporary/chart.yaml" bundle/manifests/lockstep.clusterserviceversion.yaml bundle/catalog.yaml; do
    grep -qF "$image" "$file" || fail "$file does not name $image"
  done
  tar -xOf "images/$program.tar" index.json | grep -qF "${image#*@}" || fail "images/$program.tar is not $image"
done <images.txt
digest=$(tar -xOf images/lockstep-bundle.tar index.json | grep -o 'sha256:[0-9a-f]*')
grep -qF "lockstep-bundle@$digest" bundle/catalog.yaml || fail "bundle/catalog.yaml does not name images/lockstep-bundle.tar, $digest"
if grep -hE '^ +(- )?image: ' install.yaml "$temporary/chart.yaml" | grep -vF @sha256:; then fail "an image without a digest"; fi

# Notices list the crates that are linked into a program.
complete() { # PROGRAM PROCESSOR NOTICES
  local crates=0 name version
  while read -r name version; do
    grep -qF "pkg:cargo/$name@$version\"" "sbom/$1_$2.cdx.json" || fail "sbom/$1_$2.cdx.json lacks $name $version"
    crates=$((crates + 1))
  done < <(sed -n '/^--- /q; s/^\([a-z][A-Za-z0-9_-]*\) \([0-9][^:]*\): .*/\1 \2/p' "$3")
  [ "$crates" -gt 0 ] || fail "notices of $1 name no crate"
  echo "$1_$2.cdx.json" >>"$temporary/complete"
}
for archive in kubectl-lockstep_linux_*.tar.gz; do
  processor=${archive#*linux_}
  tar -xzOf "$archive" NOTICES >"$temporary/notices"
  complete kubectl-lockstep "${processor%.tar.gz}" "$temporary/notices"
  grep -qF "$(sha256sum <"$archive" | cut -d' ' -f1)" lockstep.yaml || fail "lockstep.yaml has another checksum than $archive"
done
for archive in images/*.tar; do
  program=$(basename "$archive" .tar)
  rm -rf "$temporary/image"
  mkdir "$temporary/image"
  tar -xf "$archive" -C "$temporary/image"
  for blob in "$temporary"/image/blobs/sha256/*; do
    # A layer has notices, and the program's processor is in the ELF header.
    tar -xzOf "$blob" licenses/NOTICES >"$temporary/notices" 2>/dev/null || continue
    machine=$(tar -xzOf "$blob" "usr/bin/$program" 2>/dev/null | od -An -j18 -N2 -tx1 | tr -d ' ' || true)
    case $machine in 3e00) processor=amd64 ;; b700) processor=arm64 ;; *) fail "$program for machine $machine" ;; esac
    complete "$program" "$processor" "$temporary/notices"
  done
done
LC_ALL=C sort "$temporary/complete" | diff - <(ls sbom | LC_ALL=C sort) || fail "a bill of materials without a program"
echo "$PWD is complete"
