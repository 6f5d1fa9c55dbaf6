#!/bin/bash
# Tries a release on clean roots of several Debian releases: checks its sums, installs it, uses it, removes it, and compares.
#
#   release-test.sh [ARCHIVE [SUITE...]]     default: the archive in target/dist; bullseye bookworm trixie
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC2012
archive=${1:-$(ls -t target/dist/lacuna-*.tar.xz 2>/dev/null | head -n1 || true)}
[ -f "$archive" ] || {
    echo "release-test.sh: no archive in target/dist: \`make release\` makes one" >&2
    exit 1
}
shift || true
[ $# -gt 0 ] || set -- bullseye bookworm trixie
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$archive" "$archive.sha256" "$work/"
(cd "$work" && sha256sum --quiet -c ./*.sha256)
tar -C "$work" -xf "$archive"
for suite; do
    why=$(scripts/debian-root.sh missing "$suite")
    [ -z "$why" ] || {
        echo "release-test.sh: skipped: $why" >&2
        exit 77
    }
    root=$(scripts/debian-root.sh get "$suite")
    echo "== Debian $suite"
    scripts/debian-root.sh run "$root" "$work" scripts/release-test-inside.sh
done
echo "the release runs on: $*"
