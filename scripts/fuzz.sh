#!/bin/sh
# Runs every fuzz target for a number of seconds each (default 60), two at a time, and fails on any finding.
# Usage: scripts/fuzz.sh [SECONDS] [TARGET…]
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
targets=${*:-"header sealed_params sealed_journal sealed_medium sealed_book sealed_objects deniable_open oblivious_open flash_open flash_group flash_checkpoint flash_state_map nand_scan vault_open vault_commits vault_journal vault_namespace integrity_hostile nbd_negotiation nbd_transmission"}

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing; install it with: cargo install cargo-fuzz --locked" >&2
    exit 1
fi
# The coverage that guides the fuzzer is an unstable flag of the compiler; this lets a stable one take it.
RUSTC_BOOTSTRAP=1 cargo fuzz build --sanitizer none
python3 fuzz/seeds.py
# Memory that a run gives back is wanted again by the next.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=67108864
host=$(rustc -vV | sed -n 's/^host: //p')

run() {
    target=$1
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    log="fuzz/artifacts/$target.log"
    # A run that takes more than 30 seconds or 2 GiB is a finding.
    if "fuzz/target/$host/release/$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 \
        -max_len=1024 -len_control=0 -print_final_stats=1 \
        -artifact_prefix="fuzz/artifacts/$target/" \
        "fuzz/corpus/$target" "fuzz/seeds/$target" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "$target: no finding in $runs runs"
    else
        echo "$target: FINDING; the log is $log" >&2
        tail -n 40 "$log" >&2
        return 1
    fi
}

status=0
# shellcheck disable=SC2086 # the list is meant to be split
set -- $targets
while [ $# -gt 0 ]; do
    run "$1" &
    first=$!
    second=
    if [ $# -gt 1 ]; then
        run "$2" &
        second=$!
        shift
    fi
    shift
    wait "$first" || status=1
    [ -z "$second" ] || wait "$second" || status=1
done
exit $status
