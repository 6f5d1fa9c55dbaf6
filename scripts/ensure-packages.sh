#!/bin/sh
# Makes sure that the programs are here which the tests drive, with the word `demo` those of the demonstration alone, with
# the word `build` those of the build alone, with the word `long` those of `make test-long` too: installs them through apt
# when root, and otherwise names what is missing. Fast when nothing is.
set -eu
for_what=${1:-tests}
case $for_what in build | demo) for_tests=no ;; *) for_tests=yes ;; esac

missing=""
# A program that is there and does not work counts as missing: nbdsh, say, of a Python without its module.
works() { # PROGRAM
    PATH="$PATH:/usr/sbin:/sbin"
    case $1 in
    mke2fs | mkfs.ext4 | blkid) set -- "$1" -V ;;
    nbdsh) set -- "$1" -c 'import nbd' ;;
    openssl) set -- "$1" version ;;
    python3) set -- "$1" -c 'import fcntl, json, mmap, os, struct' ;;
    *) set -- "$1" --version ;;
    esac
    "$@" </dev/null >/dev/null 2>&1
}

need() { # PACKAGE PROGRAM...
    package=$1
    shift
    for program in "$@"; do
        if ! (works "$program"); then
            missing="$missing $package"
            broken="$broken $program"
            return
        fi
    done
}

broken=""
if [ "$for_what" != build ]; then
    need qemu-utils qemu-img qemu-io
    need fuse3 fusermount3
    need e2fsprogs mke2fs mkfs.ext4
    need util-linux fstrim setsid blkid
    need mount losetup mount umount
    need diffutils diff cmp
fi
if [ "$for_tests" = yes ]; then
    need libnbd-bin nbdinfo nbdcopy
    need nbdkit nbdkit
    need fio fio
    need bsdutils script
    need strace strace
    need openssl openssl
    need python3 python3
fi
need gcc cc
need cmake cmake
need make make
[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"

# Tests and benchmarks that need one of these skip themselves without it: btrfs (its devices have no number of their
# own), mounting without root, a Ceph cluster, qemu's driver to measure beside, a machine for a guest with flash, programs
# that keep folders in step, the peers of vaults, what counts system calls, what makes Debian packages and tries them, keyrings and tokens in software
# (tpm2-tools brings libtss2).
wanted_packages=""
want() { # PACKAGE FILE...
    package=$1
    shift
    for file in "$@"; do
        if [ -e "$file" ]; then return; fi
    done
    wanted_packages="$wanted_packages $package"
}

if [ "$for_tests" = yes ]; then
    want btrfs-progs /usr/sbin/mkfs.btrfs
    want fuse2fs /usr/bin/fuse2fs
    want ceph-mon /usr/bin/ceph-mon
    want ceph-mgr /usr/bin/ceph-mgr
    want ceph-osd /usr/bin/ceph-osd
    want ceph-common /usr/bin/ceph
    want qemu-block-extra /usr/lib/*/qemu/block-rbd.so
    [ "$(uname -m)" != x86_64 ] || want qemu-system-x86 /usr/bin/qemu-system-x86_64
    want git /usr/bin/git
    want bpftrace /usr/bin/bpftrace
    want rsync /usr/bin/rsync
    want rclone /usr/bin/rclone
    want gocryptfs /usr/bin/gocryptfs
    want cryfs /usr/bin/cryfs
    want encfs /usr/bin/encfs
    want keyutils /usr/bin/keyctl /bin/keyctl
    want libfido2-1 /usr/lib/*/libfido2.so.1
    want swtpm /usr/bin/swtpm
    want tpm2-tools /usr/bin/tpm2_pcrextend
fi
if [ "$for_what" = long ]; then
    want dpkg-dev /usr/bin/dpkg-shlibdeps
    want lintian /usr/bin/lintian
    want mmdebstrap /usr/bin/mmdebstrap
    want man-db /usr/bin/man
    want python3-venv /usr/lib/python3*/ensurepip
fi

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing:$missing"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        apt-get install -y -q --no-install-recommends $missing >/dev/null 2>&1 || {
            apt-get update -q
            # shellcheck disable=SC2086
            apt-get install -y -q --no-install-recommends $missing
        }
        for program in $broken; do
            (works "$program") || echo "$program does not work though its package is installed; tests that need it will skip themselves" >&2
        done
    else
        echo "missing packages:$missing" >&2
        if [ "$(id -u)" = 0 ]; then
            echo "these are their names on Debian; there is no apt-get here, so install them in this system's way" >&2
        else
            echo "as root on a Debian system, this script installs them" >&2
        fi
        [ "$for_tests" = no ] || echo "tests that need them will skip themselves" >&2
        case "$missing" in
        *gcc* | *cmake* | *libc6-dev*)
            echo "nothing can be built without a C compiler and cmake" >&2
            exit 1
            ;;
        esac
    fi
fi

if [ -n "$wanted_packages" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing, for tests and benchmarks beside other systems:$wanted_packages"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        apt-get install -y -q --no-install-recommends $wanted_packages >/dev/null 2>&1 || {
            apt-get update -q
            # shellcheck disable=SC2086
            apt-get install -y -q --no-install-recommends $wanted_packages
        } || echo "they cannot be installed; tests that need them will skip themselves" >&2
    else
        echo "missing packages; the tests and benchmarks that need them will skip themselves:$wanted_packages" >&2
    fi
fi

# The guest's kernel and tools are kept outside of the system. They take no root, only Debian.
guest=$(dirname "$0")/ubi-guest.sh
if [ "$for_tests" = yes ]; then
    case "$("$guest" missing)" in
    *"ubi-guest.sh get"*)
        echo "fetching a kernel for the tests on UBI volumes"
        "$guest" get || true
        ;;
    esac
    why=$("$guest" missing)
    [ -z "$why" ] || echo "tests on UBI volumes will skip themselves: $why" >&2
fi

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
if ! command -v cargo >/dev/null 2>&1; then
    echo "missing: cargo and rustc, version $wanted or newer; see https://rustup.rs" >&2
    exit 1
fi
found=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n1)" != "$wanted" ]; then
    echo "rustc $found is too old; expected $wanted or newer; try: rustup update" >&2
    exit 1
fi
