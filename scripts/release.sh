#!/bin/bash
# Makes a release that runs on every Linux with glibc 2.28 or newer (Debian 10, Ubuntu 18.10, RHEL 8 and their like) of this
# processor: an archive with the program, manual pages, completions, units, documents, a script that installs and removes them, and
# checksums.
#
#   release.sh [--program PROGRAM] [DIRECTORY]     default: builds the program; target/dist. Prints the path of the archive
#
# Why not one static file with musl: librados is loaded when a disk in Ceph is opened, and a static program cannot load it. So the
# program needs the system's C library and nothing else, linked by Zig against an old version of it.
set -euo pipefail
cd "$(dirname "$0")/.."
glibc=2.28
program=
if [ "${1:-}" = --program ]; then
    program=$2
    shift 2
fi
out=$(realpath -m "${1:-target/dist}")
target=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
umask 022

build() {
    local tools=target/release-tools
    if ! [ -x $tools/bin/cargo-zigbuild ]; then
        python3 -m venv $tools
        $tools/bin/pip --quiet install -r packaging/release/requirements.txt
    fi
    # The path of this folder is no part of the program.
    PATH=$PWD/$tools/bin:$PATH RUSTFLAGS="--remap-path-prefix=$PWD=lacuna --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
        cargo zigbuild --release --locked -p lacuna-cli --target "$target.$glibc" >&2
    program=target/$target/release/lacuna
}

# Nothing but the C library, and none of its symbols newer than promised.
verify() {
    local needs newest
    needs=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|pthread|rt|util)\.so\.[0-9]+|ld-linux.*)$' || true)
    newest=$(readelf -V "$1" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n1)
    if [ -n "$needs" ]; then
        echo "release.sh: the program needs $needs; expected nothing but the C library" >&2
        exit 1
    elif [ "$(printf '%s\n%s\n' "$newest" $glibc | sort -V | tail -n1)" != $glibc ]; then
        echo "release.sh: the program needs glibc $newest; expected $glibc or older" >&2
        exit 1
    fi
}

# The part of CHANGELOG.md about this version, or about what is not released yet.
notes() {
    awk -v version="[$version]" '
        /^## / { if (found) exit; found = index($0, version) }
        found' CHANGELOG.md | grep . || awk '/^## \[Unreleased\]/ { f = 1; print; next } /^## / { f = 0 } f' CHANGELOG.md
}

[ -n "$program" ] || build
verify "$program"
name=lacuna-$version-$(uname -m)-linux
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/$name
mkdir -p "$tree" "$out"
strip --strip-unneeded -o "$work/program" "$program"
scripts/install.sh "$work/program" "" "$tree"
[ -e "$tree/share/doc/lacuna/third-party.gz" ]
(cd "$tree" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$tree/"
cp LICENSE-MIT LICENSE-APACHE "$tree/"
install -m 755 packaging/release/install.sh "$tree/install.sh"
notes >"$tree/RELEASE-NOTES.md"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - "$name" | xz -T0 >"$out/$name.tar.xz"
cp "$tree/RELEASE-NOTES.md" "$out/"
(cd "$out" && sha256sum "$name.tar.xz" >"$name.tar.xz.sha256")
echo "$out/$name.tar.xz"
