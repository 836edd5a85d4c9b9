#!/usr/bin/env bash
# Installs zig once into the cache and prints its path as the last line. Its clang and its headers of musl compile the C
# parts of programs for another processor than this machine's.
#
# Needs Python with venv, and PyPI the first time.
set -euo pipefail
package='ziglang==0.17.1
  --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
  --hash=sha256:b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e'
cache=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/zig
venv=$cache/0.17.1
zig() { "$venv/bin/python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))' 2>/dev/null; }

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if ! zig >/dev/null; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "Python with venv is missing: apt-get install python3-venv" >&2; exit 1; }
  echo "zig: installing from PyPI" >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --requirement <(echo ${package})
fi
zig
