#!/bin/bash
# Makes a Debian package of a program that is already built, and has lintian look at it where it is installed.
#
#   deb.sh [PROGRAM [DIRECTORY]]      default: target/release/lacuna, target/debian; prints the path of the package
#
# DEB_MAINTAINER, DEB_REVISION: who makes it, and which package of this version it is. DEB_HOMEPAGE: its page, if not the repository
# or documentation in Cargo.toml. DEB_LEVEL: how hard xz tries.
# SOURCE_DATE_EPOCH: the date in it; that of the last commit if not set, so that the same source and program make the same package.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-target/release/lacuna}
out=${2:-target/debian}
for tool in dpkg-deb dpkg-shlibdeps strip; do
    command -v $tool >/dev/null || {
        echo "deb.sh: there is no $tool here; on Debian: apt-get install dpkg-dev binutils" >&2
        exit 1
    }
done

maintainer=${DEB_MAINTAINER:-The lacuna developers <lacuna@packages.invalid>}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)-${DEB_REVISION:-0lacuna1}
field() { # NAME
    sed -n "s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml
}
homepage=${DEB_HOMEPAGE:-$(field repository)}
homepage=${homepage:-$(field documentation)}
architecture=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/lacuna
mkdir -p "$work/debian" "$tree/DEBIAN" "$out"

# The package has no symbols; a program that `make` builds has them, for backtraces.
strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "$work/program" "$program"
# The manual pages and completions come from a program that runs here.
ZSH_COMPLETIONS=share/zsh/vendor-completions scripts/install.sh "$work/program" /usr "$tree"

docs=$tree/usr/share/doc/lacuna
[ -e "$docs/third-party.gz" ]
{
    echo "lacuna ($version) unstable; urgency=medium"
    echo
    echo "  * What changed in lacuna is in /usr/share/doc/lacuna/changelog.gz."
    echo
    echo " -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$docs/changelog.Debian.gz"
install -D -m 644 packaging/debian/lintian-overrides "$tree/usr/share/lintian/overrides/lacuna"

# What the program is linked with, as dpkg knows it.
printf 'Source: lacuna\n\nPackage: lacuna\nArchitecture: any\n' >"$work/debian/control"
needs=$(cd "$work" && dpkg-shlibdeps -O -e"$tree/usr/bin/lacuna" 2>"$work/shlibs" | sed -n 's/^shlibs:Depends=//p') || {
    cat "$work/shlibs" >&2
    exit 1
}
size=$(du -k -s --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
sed -e "s#@VERSION@#$version#; s#@ARCHITECTURE@#$architecture#; s#@MAINTAINER@#$maintainer#" \
    -e "s#@NEEDS@#$needs#; s#@SIZE@#$size#; s#@HOMEPAGE@#$homepage#" packaging/debian/control >"$tree/DEBIAN/control"
for script in postinst prerm postrm; do
    install -m 755 "packaging/debian/$script" "$tree/DEBIAN/$script"
done
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0 touch --no-dereference --date="@$SOURCE_DATE_EPOCH"

package=$out/lacuna_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -z"${DEB_LEVEL:-6}" --build "$tree" "$package" >/dev/null
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning --display-info "$package" >&2
else
    echo "deb.sh: lintian is not installed; the package was not looked at" >&2
fi
echo "$package"
