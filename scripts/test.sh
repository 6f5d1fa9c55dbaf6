#!/bin/sh
# Runs every test of the workspace in two rows at once: programs and disks on Ceph mostly wait for servers, everything else mostly
# computes, and one after the other each leaves processors idle. The second row prints when the first has ended. The tests of papers/,
# of what the fuzz targets share and of examples/sixth-format, workspaces of their own in the same target folder, follow the first row.
# Usage: scripts/test.sh [quick] [OPTION OF CARGO TEST…]
#
# `quick` leaves out what takes minutes and fails seldom: the games of adversaries, benchmarks, papers, forgers of fuzz targets, the
# format of the example, what needs a cluster, and of the whole program the modules that wait long (`slow` below).
#
# Variables:
#   CARGO               cargo
#   RUST_TEST_THREADS   threads of each target in the first row (3)
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
quick=
if [ "${1:-}" = quick ]; then
    quick=yes
    shift
fi

# The first row, whose targets run one after the other:
# - `whole`, which drives servers, and the tests of mounts, which wait for the kernel,
# - all that use the cluster, for `whole` stops its OSDs, which no other target expects,
# - all that look at the page cache of the system, for `quick` empties it.
waiting="whole mounted vault_mounted quick pool object_store striped rados_connect rados_lock rados_pools page_cache anchor_cache"

# Modules of `whole` that take more than half of its time: those that need a cluster and skip themselves without one, trees copied to
# several levels, closings that wait for cover, hosts that are filled.
slow="rados:: rados_ levels:: levels_kills:: closing:: full_host:: online:: moved::"

# Crates of crates/test that are left out.
left_out=
[ -z "$quick" ] || left_out="bench games"

# `--test NAME` for each target of the crates that is in this row: `first` or `second`.
row() {
    for target in crates/*/*/tests/*.rs crates/*/*/tests/*/main.rs; do
        crate=${target#crates/*/}
        case " $left_out " in *" ${crate%%/*} "*) continue ;; esac
        name=$(basename "${target%/main.rs}" .rs)
        case " $waiting " in
        *" $name "*) [ "$1" = second ] || echo "$name" ;;
        *) [ "$1" = first ] || echo "$name" ;;
        esac
    done | sort -u | sed 's/^/--test /'
}

# Everything is built once, with the features that all crates together have, before servers of Ceph take time from it.
began=$(date +%s)
# shellcheck disable=SC2086 # the list is meant to be split
crates="--workspace $(printf -- '--exclude lacuna-%s ' $left_out)"
[ "$left_out" ] || crates=--workspace
# shellcheck disable=SC2086 # options, which are meant to be split
$cargo test $crates "$@" --no-run
papers="--manifest-path papers/Cargo.toml --target-dir ${CARGO_TARGET_DIR:-target}"
fuzz="--manifest-path fuzz/Cargo.toml --target-dir ${CARGO_TARGET_DIR:-target} --no-default-features --lib"
sixth="--manifest-path examples/sixth-format/Cargo.toml --target-dir ${CARGO_TARGET_DIR:-target}"
if [ -z "$quick" ]; then
    # shellcheck disable=SC2086
    $cargo test $papers "$@" --no-run
    # shellcheck disable=SC2086
    $cargo test $fuzz "$@" --no-run
    # The versions that everything else here is tested with.
    cp Cargo.lock examples/sixth-format/Cargo.lock
    # shellcheck disable=SC2086
    $cargo test $sixth "$@" --no-run
fi
built=$(date +%s)

said=$(mktemp)
second=
trap '[ -z "$second" ] || kill -- "-$second" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT TERM HUP
status=0

# shellcheck disable=SC2046,SC2086 # the lists are meant to be split
setsid $cargo test $crates --no-fail-fast "$@" --lib --bins $(row second) >"$said" 2>&1 &
second=$!
threads=${RUST_TEST_THREADS:-3}
if [ "$quick" ]; then
    # shellcheck disable=SC2046,SC2086
    RUST_TEST_THREADS=$threads $cargo test $crates --no-fail-fast "$@" $(row first) -- \
        $(printf -- '--skip %s ' $slow) || status=1
else
    # shellcheck disable=SC2046
    RUST_TEST_THREADS=$threads scripts/ceph-cluster.sh run ec -- \
        $cargo test $crates --no-fail-fast "$@" $(row first) || status=1
fi
first=$(date +%s)
# shellcheck disable=SC2086
$cargo test $crates --no-fail-fast "$@" --doc || status=1
if [ -z "$quick" ]; then
    # shellcheck disable=SC2086
    $cargo test $papers --no-fail-fast "$@" || status=1
    # shellcheck disable=SC2086
    $cargo test $fuzz --no-fail-fast "$@" || status=1
    # shellcheck disable=SC2086
    $cargo test $sixth --no-fail-fast "$@" || status=1
fi
wait "$second" || status=1
second=
cat "$said"
echo "built in $((built - began)) s, tests of the first row in $((first - built)) s, all tests in $(($(date +%s) - built)) s"
exit $status
