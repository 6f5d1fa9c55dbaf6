#!/bin/sh
# Runs every test of the workspace in two rows at once: programs and disks on Ceph mostly wait for servers, everything else mostly
# computes, and one after the other each leaves processors idle. The second row prints when the first has ended. The tests of
# papers/ and of what the fuzz targets share, workspaces of their own in the same target folder, follow the first row.
# Usage: scripts/test.sh [OPTION OF CARGO TEST…]
#
# Variables:
#   CARGO               cargo
#   RUST_TEST_THREADS   threads of each target in the first row (2)
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# The first row, whose targets run one after the other:
# - `whole`, which drives servers,
# - all that use the cluster, for `whole` stops its OSDs, which no other target expects,
# - all that look at the page cache of the system, for `quick` empties it.
waiting="whole quick pool object_store striped rados_connect rados_lock rados_pools page_cache anchor_cache"

# `--test NAME` for each target of the crates that is in this row: `first` or `second`.
row() {
    for target in crates/*/*/tests/*.rs crates/*/*/tests/*/main.rs; do
        name=$(basename "${target%/main.rs}" .rs)
        case " $waiting " in
        *" $name "*) [ "$1" = second ] || echo "$name" ;;
        *) [ "$1" = first ] || echo "$name" ;;
        esac
    done | sort -u | sed 's/^/--test /'
}

# Everything is built once, with the features that the whole workspace has, before servers of Ceph take time from it.
began=$(date +%s)
$cargo test --workspace "$@" --no-run
papers="--manifest-path papers/Cargo.toml --target-dir ${CARGO_TARGET_DIR:-target}"
fuzz="--manifest-path fuzz/Cargo.toml --target-dir ${CARGO_TARGET_DIR:-target} --no-default-features --lib"
# shellcheck disable=SC2086 # options, which are meant to be split
$cargo test $papers "$@" --no-run
# shellcheck disable=SC2086
$cargo test $fuzz "$@" --no-run
built=$(date +%s)

said=$(mktemp)
second=
trap '[ -z "$second" ] || kill -- "-$second" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT TERM HUP
status=0

# shellcheck disable=SC2046 # the lists are meant to be split
setsid $cargo test --workspace --no-fail-fast "$@" --lib --bins $(row second) >"$said" 2>&1 &
second=$!
# shellcheck disable=SC2046
RUST_TEST_THREADS=${RUST_TEST_THREADS:-2} scripts/ceph-cluster.sh run ec -- \
    $cargo test --workspace --no-fail-fast "$@" $(row first) || status=1
first=$(date +%s)
$cargo test --workspace --no-fail-fast "$@" --doc || status=1
# shellcheck disable=SC2086
$cargo test $papers --no-fail-fast "$@" || status=1
# shellcheck disable=SC2086
$cargo test $fuzz --no-fail-fast "$@" || status=1
wait "$second" || status=1
second=
cat "$said"
echo "built in $((built - began)) s, tests of the first row in $((first - built)) s, all tests in $(($(date +%s) - built)) s"
exit $status
