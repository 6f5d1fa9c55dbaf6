#!/bin/bash
# Installs the Debian package in a clean root of Debian, uses it, reads every manual page, removes and purges it, and
# compares what is left with what was there.
#
#   deb-test.sh [PROGRAM]      default: target/release/lacuna; the package is made of it. Exit code 77: it cannot be tried here.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-target/release/lacuna}
# The suite of this machine, whose C library the program is linked with; another one elsewhere.
# shellcheck disable=SC1091
suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || suite=trixie
for need in "$(scripts/debian-root.sh missing "$suite")" "$(command -v dpkg-shlibdeps >/dev/null || echo "no dpkg-dev")"; do
    [ -z "$need" ] || {
        echo "deb-test.sh: skipped: $need" >&2
        exit 77
    }
done
root=$(scripts/debian-root.sh get "$suite") || {
    echo "deb-test.sh: skipped: there is no root of Debian $suite" >&2
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DEB_LEVEL=0 scripts/deb.sh "$program" "$work" >/dev/null
scripts/debian-root.sh run "$root" "$work" scripts/deb-test-inside.sh
