#!/usr/bin/env bash
# Prints the size of a supervisor's binary and what it holds in memory while it waits at the barrier.
set -euo pipefail
program=$1
folder=$(mktemp -d)
"$program" exec --dir "$folder" -- true 2>"$folder/log" &
supervisor=$!
trap 'kill "$supervisor" 2>/dev/null || true; wait "$supervisor" 2>/dev/null || true; rm -rf "$folder"' EXIT
until [ -S "$folder/agent.sock" ] && [ -e "$folder/state" ]; do
	kill -0 "$supervisor"
	sleep 0.05
done
echo "binary: $(stat -c %s "$program") bytes"
echo "memory: $(awk '/^VmRSS/ {print $2, $3}' "/proc/$supervisor/status")"
