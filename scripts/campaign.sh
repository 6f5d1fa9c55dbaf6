#!/bin/sh
# Plays long runs in ranges of seeds, and notes a digest of each run in docs/campaigns.tsv.
# Usage: scripts/campaign.sh [PLAY…]     `scripts/campaign.sh list` names the plays; without any, all are played.
#
# Variables:
#   CUTS    power cuts of each play of cuts, for each cipher and layout (20000)
#   LIES    openings of each play of lies, for all ciphers and layouts together (20000)
#   RANGES  ranges of seeds into which a play is divided (10)
#   SEED    the first seed (1)
#   STATE   where it is noted what was played (target/campaign)
#   CARGO   cargo
#
# A range that was played for a commit is not played again: a run that was interrupted goes on where it was. The same seed gives the
# same digest. Of a tree with changes that are not committed nothing is noted.
set -eu
cd "$(dirname "$0")/.."

cuts=${CUTS:-20000}
lies=${LIES:-20000}
ranges=${RANGES:-10}
seed=${SEED:-1}
state=${STATE:-target/campaign}
cargo=${CARGO:-cargo}
lines=docs/campaigns.tsv

# Name, package, tests.
plays() {
    cat <<'PLAYS'
cuts/sealed lacuna-sealed crash
cuts/deniable lacuna-deniable crash
cuts/oblivious lacuna-oblivious crash
cuts/flash lacuna-flash crash
cuts/vault lacuna-vault store_crash vault_crash
lies/sealed lacuna-sealed lies
lies/objects lacuna-sealed-objects lies
lies/deniable lacuna-deniable lies
lies/oblivious lacuna-oblivious lies
lies/flash lacuna-flash lies
lies/header lacuna-header lies
lies/vault lacuna-vault vault_lies
PLAYS
}

commit=$(git rev-parse --short=12 HEAD)
# The lines of earlier runs are no change of what is played.
if [ -n "$(git status --porcelain -- . ":!$lines")" ]; then
    echo "the tree has changes that are not committed: everything is played, and nothing is noted" >&2
    commit=
fi

# The digest of what comes in: of the lines with digests, in any order.
digest_of() {
    grep -o '[^.]*digest [0-9a-f]\{16\}' | sed 's/^ *//' | sort | sha256sum | cut -c 1-16
}

# One range: its log is kept if it fails.
play_range() {
    name=$1 package=$2 tests=$3 first=$4 count=$5
    note=$state/${commit:-changed}/$name/$first-$count
    if [ -n "$commit" ] && [ -s "$note" ]; then
        cat "$note"
        return
    fi
    mkdir -p "$(dirname "$note")"
    log=$note.log
    # shellcheck disable=SC2086 # the list is meant to be split
    # Some tests count on from the seed.
    if ! LACUNA_CUTS=$count LACUNA_LIES=$count LACUNA_SEED=$((first * 1000)) \
        $cargo test --release -p "$package" $tests -- --nocapture >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        echo "$name, seed $first: FAILED; the log is $log" >&2
        return 1
    fi
    digest_of <"$log" >"$note.new"
    mv "$note.new" "$note"
    rm "$log"
    cat "$note"
}

play() {
    name=$1 package=$2
    shift 2
    tests=
    for test in "$@"; do tests="$tests --test $test"; done
    case $name in
    cuts/*) total=$cuts ;;
    *) total=$lies ;;
    esac
    count=$(((total + ranges - 1) / ranges))
    last=$((seed + ranges - 1))
    all=
    at=$seed
    while [ "$at" -le "$last" ]; do
        one=$(play_range "$name" "$package" "$tests" "$at" "$count") || return 1
        echo "$name, seed $at: $count, digest $one"
        all="$all$one
"
        at=$((at + 1))
    done
    digest=$(printf %s "$all" | sha256sum | cut -c 1-16)
    echo "$name, seeds $seed to $last: $((count * ranges)), digest $digest"
    line=$(printf '%s\t%s\t%s-%s\t%s\t%s' "$commit" "$name" "$seed" "$last" "$((count * ranges))" "$digest")
    if [ -n "$commit" ] && ! grep -qxF "$line" "$lines"; then
        printf '%s\n' "$line" >>"$lines"
    fi
}

if [ "${1:-}" = list ]; then
    plays | cut -d ' ' -f 1
    exit
fi
status=0
for wanted in ${*:-$(plays | cut -d ' ' -f 1)}; do
    found=$(plays | grep "^$wanted ") || {
        echo "there is no play $wanted; \`scripts/campaign.sh list\` names them" >&2
        exit 1
    }
    # shellcheck disable=SC2086 # the fields of the line
    play $found || status=1
done
exit $status
