#!/bin/sh
# Installs lacuna, and is the only list of what belongs to it: `make install`, the Debian package and the release all come
# from here. Manual pages and completions are written by the program itself.
#
#   install.sh PROGRAM PREFIX [DESTDIR]
#   install.sh --check PREFIX [DESTDIR]         whether this user may install there; nothing is written
#   install.sh --uninstall PREFIX [DESTDIR]     removes what this script installed; no disk or vault, and nothing that they need
#
# PREFIX is where it will run, such as /usr/local, or empty for a tree that somebody moves; DESTDIR comes before every path.
# ZSH_COMPLETIONS is where zsh looks below PREFIX, if not in share/zsh/site-functions. LICENCES=no leaves out those of other crates.
set -eu

[ $# -ge 2 ] || {
    echo "usage: install.sh PROGRAM|--check|--uninstall PREFIX [DESTDIR]" >&2
    exit 1
}
program=$1 prefix=$2
to=${3:-}$2
from=$(cd "$(dirname "$0")/.." && pwd)
goal=install
[ "$program" != --uninstall ] || goal=uninstall

# Each folder, or the nearest one above it that exists, must be writable: no installation fails half-way.
for folder in bin lib sbin share; do
    at=$to/$folder
    until [ -e "$at" ]; do
        at=$(dirname "$at")
    done
    [ -w "$at" ] || {
        given=
        [ "$prefix" = /usr/local ] || given=" PREFIX=$prefix"
        hint="run \`sudo make $goal$given\`"
        [ $goal = uninstall ] || hint="$hint, or for yourself \`make install PREFIX=\$HOME/.local\`"
        echo "install.sh: cannot write to $at; $hint" >&2
        exit 1
    }
done
[ "$program" != --check ] || exit 0

# Removes what this script installs with the installed program. Folders go that are empty then, except those that every prefix has.
uninstall() {
    [ -x "$to/bin/lacuna" ] || {
        echo "install.sh: there is no $to/bin/lacuna; nothing was removed" >&2
        exit 1
    }
    list=$(mktemp -d)
    trap 'rm -rf "$list"' EXIT
    LICENCES=no "$0" "$to/bin/lacuna" "$prefix" "$list" >/dev/null
    (cd "$list$prefix" && find . ! -type d) | sed 's#^\./##' | while read -r file; do
        rm -f "$to/$file"
        folder=$(dirname "$file")
        until [ "$folder" = bin ] || [ "$folder" = lib ] || [ "$folder" = sbin ] || [ "$folder" = share ] ||
            [ "$folder" = share/man ] || [ "$folder" = . ] || ! rmdir "$to/$folder" 2>/dev/null; do
            folder=$(dirname "$folder")
        done
    done
    # Documents of an older version, and the licences.
    rm -rf "$to/share/doc/lacuna"
    rmdir "$to/share/doc" 2>/dev/null || true
    # The links that an installation asks for.
    for helper in mount.lacuna umount.lacuna; do
        if [ "$(readlink "/sbin/$helper")" = "$to/sbin/$helper" ]; then
            rm -f "/sbin/$helper" || echo "left: /sbin/$helper, which leads nowhere now" >&2
        fi
    done
    echo "removed from $to"
}
[ $goal = install ] || {
    uninstall
    exit 0
}
[ -x "$program" ] || {
    echo "install.sh: there is no program $program; \`make\` builds it" >&2
    exit 1
}

put() { # MODE FILE PLACE
    install -D -m "$1" "$2" "$to/$3"
}

# Where the program will be found: the same text in every unit.
unit() { # FILE PLACE
    put 644 "$1" "$2"
    sed -i "s#/usr/\(s*bin\)/\([a-z.]*lacuna\)#${prefix:-/usr}/\1/\2#g" "$to/$2"
}

put 755 "$program" bin/lacuna

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$program" man "$pages"
for page in "$pages"/*; do
    section=${page##*.}
    gzip -9n "$page"
    put 644 "$page.gz" "share/man/man$section/$(basename "$page").gz"
done

for shell in bash zsh fish; do
    "$program" completions "$shell" >"$pages/$shell"
done
put 644 "$pages/bash" share/bash-completion/completions/lacuna
put 644 "$pages/zsh" "${ZSH_COMPLETIONS:-share/zsh/site-functions}/_lacuna"
put 644 "$pages/fish" share/fish/vendor_completions.d/lacuna.fish

# Units, and what systemd and mount(8) look for beside them.
for file in "$from"/packaging/systemd/*; do
    case $file in
    *.service | *.socket | *.target | *.timer | *.path | *.mount | *.automount | *.slice)
        unit "$file" "lib/systemd/system/$(basename "$file")"
        ;;
    *.d)
        for part in "$file"/*.conf; do
            put 644 "$part" "lib/systemd/system/$(basename "$file")/$(basename "$part")"
        done
        ;;
    esac
done
put 644 "$from/packaging/61-lacuna.rules" lib/udev/rules.d/61-lacuna.rules
put 644 "$from/packaging/magic" share/lacuna/magic
# mount(8) and umount(8) run these for the type `lacuna`; they are the program under other names.
for helper in mount.lacuna umount.lacuna; do
    [ -e "$pages/mount.lacuna.8.gz" ] || continue
    mkdir -p "$to/sbin"
    ln -sf ../bin/lacuna "$to/sbin/$helper"
    [ $helper = mount.lacuna ] || {
        echo ".so man8/mount.lacuna.8" | gzip -9n >"$pages/link"
        put 644 "$pages/link" "share/man/man8/$helper.8.gz"
    }
done
case $prefix in
/usr | "") ;;
*) [ ! -e "$to/sbin/mount.lacuna" ] || echo "for fstab and mount -t lacuna: ln -s $prefix/sbin/*.lacuna /sbin/" ;;
esac

docs=share/doc/lacuna
put 644 "$from/README.md" $docs/README.md
put 644 "$from/SECURITY.md" $docs/SECURITY.md
put 644 "$from/CHANGELOG.md" $docs/changelog
gzip -9nf "$to/$docs/changelog"
for file in "$from"/docs/*.md "$from"/docs/format/*.md "$from"/docs/plots/*.svg; do
    put 644 "$file" "$docs/docs/${file#"$from"/docs/}"
done
put 644 "$from/packaging/debian/copyright" $docs/copyright
# These licences go with every copy that is given to others. An installation of one person can do without.
if [ "${LICENCES:-}" = no ]; then
    :
elif "$from/scripts/third-party.py" >"$pages/third-party"; then
    gzip -9n "$pages/third-party"
    put 644 "$pages/third-party.gz" $docs/third-party.gz
else
    echo "install.sh: the licences of other crates are left out; they take cargo and python3" >&2
fi
