#!/usr/bin/env bash
# Times the engine's decisions in several runs, counts their instructions where valgrind is installed, and prints the tables
# of docs/benchmarks.md. RUNS=N is how many runs the spread is taken over;
# TARGET=x86_64-unknown-linux-musl measures static programs, as they are in images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

runs=${RUNS:-3}
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo=${CARGO:-cargo}
for_target=(${TARGET:+--target "$TARGET"})
export CRITERION_HOME=$target/criterion GUNGRAUN_HOME=$target/gungraun
loads=$CRITERION_HOME/loads
mkdir -p "$CRITERION_HOME"
rm -rf "$loads" "$GUNGRAUN_HOME/lockstep-bench"

"$cargo" bench -q -p lockstep-bench "${for_target[@]}" --no-run
for run in $(seq "$runs"); do
    cut -d' ' -f1 /proc/loadavg >> "$loads"
    echo "run $run of $runs" >&2
    "$cargo" bench -q -p lockstep-bench "${for_target[@]}" --bench engine -- --quiet --save-baseline "run-$run" >&2
done

version=$(sed -n 's/^gungraun = "=\(.*\)"$/\1/p' tests/bench/Cargo.toml)
runner=${GUNGRAUN_RUNNER:-gungraun-runner}
if ! command -v valgrind > /dev/null; then
    echo "instruction counts skipped: no valgrind" >&2
elif ! command -v "$runner" > /dev/null; then
    echo "instruction counts skipped: no gungraun-runner (cargo install gungraun-runner@$version)" >&2
else
    GUNGRAUN_RUNNER=$(command -v "$runner") \
        "$cargo" bench -q -p lockstep-bench "${for_target[@]}" --bench instructions -- --save-summary=json > "$target/instructions.txt"
fi
"$cargo" run -q --release -p lockstep-bench --bin bench-table -- "$CRITERION_HOME" "$GUNGRAUN_HOME" "$runs"
