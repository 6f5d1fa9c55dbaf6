#!/bin/sh
# Plays long runs in ranges of seeds, and notes a digest of each play in docs/campaigns.tsv.
# Usage: scripts/campaign.sh [PLAY…]     `scripts/campaign.sh list` names the plays; without any, all are played.
#
# Variables:
#   CUTS    power cuts of each play of cuts, with deaths of the process in those of deaths (20000)
#   LIES    openings of each play of lies (20000)
#   GAMES   runs of each game against each scheme, sessions of disks whose levels are used together, and cuts of closes (20000)
#   RANGES  ranges of seeds into which a play is divided (10)
#   SEED    the first seed (1)
#   JOBS    ranges that are played at a time (1)
#   STATE   where the programs are kept, and what was played (target/campaign)
#   CARGO   cargo
#
# The programs are built once for the code that is checked out, and copied: an edit or a build beside a campaign changes nothing that it
# plays, and a later run goes on without building. A range that was played by the same program is not played again: a run that was
# interrupted goes on where it was, and after a change of the code only the plays whose programs it changes are played again. The same
# seed gives the same digest. Of code with changes that are not committed nothing is noted.
#
# A range begins at a million times its seed, as LACUNA_SEED. Plays count on from there, by one for each run or disk at most, so ranges of up
# to a million cuts, openings or runs have no seed in common. The seed that a failed test prints is its LACUNA_SEED, not one of this script.
set -eu
cd "$(dirname "$0")/.."

cuts=${CUTS:-20000}
lies=${LIES:-20000}
games=${GAMES:-20000}
ranges=${RANGES:-10}
seed=${SEED:-1}
jobs=${JOBS:-1}
state=${STATE:-target/campaign}
case $state in /*) ;; *) state=$PWD/$state ;; esac
cargo=${CARGO:-cargo}
lines=docs/campaigns.tsv

# Name, crate, test targets.
plays() {
    cat <<'PLAYS'
cuts/header header crash
cuts/sealed sealed crash
cuts/sealed-deaths sealed process_death
cuts/objects sealed-objects model
cuts/objects-deaths sealed-objects process_death
cuts/deniable deniable crash
cuts/oblivious oblivious crash
cuts/flash flash crash
cuts/flash-deaths flash process_death
cuts/vault-store vault-store store_crash
cuts/vault vault vault_crash
lies/header games header_lies
lies/sealed games sealed_lies
lies/objects games objects_lies
lies/deniable games deniable_lies
lies/oblivious games oblivious_lies
lies/flash games flash_lies
lies/vault games vault_lies
games/integrity games integrity_game
games/vault games vault_game
games/levels games levels_stress
games/closings games closing_cuts
PLAYS
}

# The part of a line of output that says a digest. Tests with threads, which no seed gives again, say none, or the digest of what does not
# depend on which thread comes first.
digests() {
    grep -o '[^.]*digest [0-9a-f]\{16\}' | sed 's/^ *//' | sort
}

sum() {
    sha256sum | cut -c 1-16
}

# Where the digests of the ranges of a play are, which were played by these very programs.
played() { # DIR NAME CRATE TARGET...
    dir=$1 name=$2 crate=$3
    shift 3
    echo "$state/played/$name/$(for target in "$@"; do sha256sum <"$dir/programs/$crate-$target"; done | sum)"
}

# One range, unless it was played: the log is kept if it fails.
range() { # DIR NAME CRATE FIRST COUNT TARGET...
    dir=$1 name=$2 crate=$3 first=$4 count=$5
    shift 5
    note=$(played "$dir" "$name" "$crate" "$@")/$first-$count
    mkdir -p "$(dirname "$note")"
    # Another campaign may be playing this range with the same program.
    exec 8>"$note.lock"
    flock 8
    if [ -s "$note" ]; then
        echo "$name, seed $first: $count, digest $(cat "$note"), played before"
        return
    fi
    log=$note.log
    : >"$log"
    began=$(date +%s)
    for target in "$@"; do
        # In the folder of the crate, as under cargo.
        if ! (cd crates/*/"$crate" && LACUNA_CUTS=$count LACUNA_LIES=$count LACUNA_GAMES=$count LACUNA_SEED=$((first * 1000000)) \
            "$dir/programs/$crate-$target" --nocapture) >>"$log" 2>&1; then
            tail -n 40 "$log" >&2
            echo "$name, seed $first: $target FAILED; the log is $log" >&2
            return 1
        fi
    done
    if [ -z "$(digests <"$log")" ]; then
        echo "$name, seed $first: FAILED, no test says a digest; the log is $log" >&2
        return 1
    fi
    digests <"$log" | sum >"$note.new"
    mv "$note.new" "$note"
    rm "$log"
    echo "$name, seed $first: $count, digest $(cat "$note"), $(($(date +%s) - began)) s"
}

# The range of seeds, and the cuts, openings or runs in each.
last=$((seed + ranges - 1))
count_of() { # NAME
    case $1 in
    cuts/*) total=$cuts ;;
    lies/*) total=$lies ;;
    games/*) total=$games ;;
    esac
    echo $(((total + ranges - 1) / ranges))
}

# Builds the programs of all plays with the features of the whole workspace, as `make test-long` has them, and copies them.
build() { # DIR
    programs=$1/programs
    # Another campaign of the same code may be building them.
    exec 9>"$1/building"
    flock 9
    [ ! -e "$programs/all" ] || return 0
    rm -rf "$programs"
    mkdir -p "$programs"
    targets=$(plays | cut -d ' ' -f 3- | tr ' ' '\n' | sort -u | sed 's/^/--test /')
    # shellcheck disable=SC2086 # the list is meant to be split
    $cargo test --release --workspace --no-run --message-format=json-render-diagnostics $targets >"$programs/built"
    plays | while read -r _ crate wanted; do
        for target in $wanted; do
            program=$(sed -n "/crates\/[a-z]*\/$crate\/Cargo.toml\"/s/.*\"name\":\"$target\".*\"executable\":\"\([^\"]*\)\".*/\1/p" "$programs/built")
            cp "$program" "$programs/$crate-$target"
        done
    done
    rm "$programs/built"
    touch "$programs/all"
}

# A line for each range of a play.
ranges_of() { # DIR NAME CRATE TARGET...
    dir=$1 name=$2 crate=$3
    shift 3
    at=$seed
    while [ "$at" -le "$last" ]; do
        echo "$dir $name $crate $at $(count_of "$name") $*"
        at=$((at + 1))
    done
}

# Says what became of a play whose ranges were all played, and notes it.
end() { # DIR COMMIT NAME CRATE TARGET...
    commit=$2 name=$3
    notes=$(dir=$1 && shift 2 && played "$dir" "$@")
    count=$(count_of "$name")
    all=
    at=$seed
    while [ "$at" -le "$last" ]; do
        one=$(cat "$notes/$at-$count" 2>/dev/null) || return 1
        all="$all$one
"
        at=$((at + 1))
    done
    digest=$(printf %s "$all" | sum)
    echo "$name, seeds $seed to $last: $((count * ranges)), digest $digest"
    line=$(printf '%s\t%s\t%s-%s\t%s\t%s' "$commit" "$name" "$seed" "$last" "$((count * ranges))" "$digest")
    if [ -n "$commit" ] && ! grep -qxF "$line" "$lines"; then
        printf '%s\n' "$line" >>"$lines"
    fi
}

case ${1:-} in
list)
    plays | cut -d ' ' -f 1
    exit
    ;;
range) # A range of a run, which calls this script for it.
    shift
    range "$@"
    exit
    ;;
esac

wanted=${*:-$(plays | cut -d ' ' -f 1)}
for name in $wanted; do
    plays | grep -q "^$name " || {
        echo "there is no play $name; \`scripts/campaign.sh list\` names them" >&2
        exit 1
    }
done

code="crates Cargo.toml Cargo.lock"
# shellcheck disable=SC2086 # the list is meant to be split
if [ -n "$(git status --porcelain -- $code)" ]; then
    echo "the code has changes that are not committed: nothing is noted" >&2
    dir=$state/changed
    rm -rf "$dir"
    mkdir -p "$dir"
    commit=
else
    # Commits that change documents alone need no new programs.
    dir=$state/$(for path in $code; do git rev-parse "HEAD:$path"; done | sum)
    mkdir -p "$dir"
    [ -s "$dir/commit" ] || git rev-parse --short=12 HEAD >"$dir/commit"
    commit=$(cat "$dir/commit")
fi
build "$dir"
exec 9>&-

status=0
for name in $wanted; do
    # shellcheck disable=SC2046
    ranges_of "$dir" $(plays | grep "^$name ")
done | xargs -P "$jobs" -L 1 scripts/campaign.sh range || status=1
for name in $wanted; do
    # shellcheck disable=SC2046
    end "$dir" "$commit" $(plays | grep "^$name ") || status=1
done
exit $status
