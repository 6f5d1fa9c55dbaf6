#!/bin/sh
# What deniability at every depth costs: the benchmark of disks with levels, with the program of an earlier commit (by default
# the last one whose formats have version 1) and with that of this tree, one after the other.
#
# scripts/before-after.sh [COMMIT] [REPEATS]
set -eu
cd "$(dirname "$0")/.."
commit=${1:-98aa4a1}
repeats=${2:-3}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/before" 2>/dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/before" "$commit"
(cd "$work/before" && CARGO_TARGET_DIR="$work/target" cargo build --quiet --release -p lacuna-cli)
cp "$work/target/release/lacuna" "$work/lacuna-before"
rm -rf "$work/target"
cargo build --quiet --release -p lacuna-cli -p lacuna-bench
for which in before after; do
    program=target/release/lacuna
    [ $which = after ] || program=$work/lacuna-before
    printf '\n== %s\n' "$which: $("$program" --version) of $([ $which = after ] && git rev-parse --short HEAD || echo "$commit")"
    target/release/lacuna-bench --only levels --repeats "$repeats" --lacuna "$program" --out "$work/out" 2>/dev/null
done
