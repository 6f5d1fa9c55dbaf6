#!/bin/bash
# Clean roots of Debian, in which packages and releases are tried. They are fetched once for all builds and kept outside of the
# system. Making them and running in them takes root.
#
#   debian-root.sh missing SUITE            says what is missing here; says nothing if a root of the suite is there or can be made
#   debian-root.sh get SUITE                fetches it, if it is not there; prints its archive
#   debian-root.sh run ARCHIVE DIR SCRIPT   unpacks it into a new temporary folder, copies DIR there as /given, and runs
#                                           SCRIPT in it with /bin/sh, with its own /proc and /dev; no network
set -euo pipefail

# What the tests use in them, beside what every Debian has.
packages=man-db,file
kept=${LACUNA_ROOTS_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/lacuna/roots}

fail() {
    echo "debian-root.sh: $*" >&2
    exit 1
}

archive() { # SUITE
    echo "$kept/$1.tar"
}

missing() { # SUITE
    if [ "$(id -u)" != 0 ]; then
        echo "a clean root of Debian takes root"
    elif ! unshare --mount true 2>/dev/null; then
        echo "this machine lets users have no mounts of their own (unshare --mount)"
    elif [ ! -e "$(archive "$1")" ] && ! command -v mmdebstrap >/dev/null; then
        echo "there is no root of Debian $1 in $kept, and no mmdebstrap to make one"
    fi
}

get() { # SUITE
    local suite=$1 archive why
    archive=$(archive "$suite")
    if [ ! -e "$archive" ]; then
        why=$(missing "$suite")
        [ -z "$why" ] || fail "$why"
        mkdir -p "$kept"
        # Half an archive is not taken for a whole one. A root that is thrown away needs no syncs.
        mmdebstrap --quiet --variant=minbase --include=$packages --dpkgopt=force-unsafe-io \
            "$suite" "$kept/.$suite.$$.tar" >&2 ||
            { rm -f "$kept/.$suite.$$.tar"; fail "cannot fetch a root of Debian $suite"; }
        mv "$kept/.$suite.$$.tar" "$archive"
    fi
    echo "$archive"
}

run() { # ARCHIVE DIR SCRIPT
    local root
    root=$(mktemp -d "${TMPDIR:-/var/tmp}/lacuna-root.XXXXXX")
    # Every mount in it ends with the namespace.
    # shellcheck disable=SC2064
    trap "rm -rf --one-file-system '$root'" EXIT
    tar -xf "$1" -C "$root" --exclude='./dev/*'
    cp -a "$2" "$root/given"
    cp "$3" "$root/given.sh"
    # shellcheck disable=SC2016
    unshare --mount --pid --net --ipc --uts --fork --kill-child --propagation private /bin/sh -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs -o mode=755 tmpfs "$1/run"
        exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C.UTF-8 \
            chroot "$1" /bin/sh /given.sh' sh "$root" </dev/null
}

case ${1:-} in
missing) missing "${2:?}" ;;
get) get "${2:?}" ;;
run) run "${2:?}" "${3:?}" "${4:?}" ;;
*) fail "usage: debian-root.sh missing|get|run; the first lines of the script say more" ;;
esac
