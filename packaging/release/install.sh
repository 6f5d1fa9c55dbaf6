#!/bin/sh
# Installs lacuna from the folder that this script is in, or removes what it installed. SHA256SUMS beside it is the list of files,
# and is checked first.
#
#   ./install.sh [PREFIX]              default: /usr/local; as root, or for yourself: ./install.sh ~/.local
#   ./install.sh --uninstall [PREFIX]
set -eu
cd "$(dirname "$0")"
remove=
if [ "${1:-}" = --uninstall ]; then
    remove=yes
    shift
fi
prefix=${1:-/usr/local}
case $prefix in
/*) ;;
*)
    echo "install.sh: PREFIX is $prefix; it must be an absolute path" >&2
    exit 1
    ;;
esac

if [ -n "$remove" ]; then
    while read -r _ file; do
        rm -f "$prefix/$file"
        # Folders that are empty now, but for those that every prefix has.
        folder=$(dirname "$file")
        until [ "$folder" = bin ] || [ "$folder" = lib ] || [ "$folder" = share ] || [ "$folder" = share/man ] ||
            [ "$folder" = . ] || ! rmdir "$prefix/$folder" 2>/dev/null; do
            folder=$(dirname "$folder")
        done
    done <SHA256SUMS
    for link in sbin/*; do
        [ ! -L "$prefix/$link" ] || rm -f "$prefix/$link"
        # The link in /sbin that an installation asks for.
        if [ "$(readlink "/$link" || true)" = "$prefix/$link" ]; then
            rm -f "/$link" || echo "left: /$link, which leads nowhere now" >&2
        fi
    done
    case $prefix in
    / | /usr | /usr/local) ;;
    *) rmdir "$prefix/sbin" 2>/dev/null || true ;;
    esac
    echo "removed from $prefix"
    exit 0
fi

sha256sum --quiet -c SHA256SUMS
while read -r _ file; do
    case $file in
    bin/*) mode=755 ;;
    *) mode=644 ;;
    esac
    install -D -m $mode "$file" "$prefix/$file"
    case $file in
    # Units name the program by its whole path.
    lib/systemd/*) sed -i "s#/usr/\(s*bin\)/\([a-z.]*lacuna\)#$prefix/\1/\2#g" "$prefix/$file" ;;
    esac
done <SHA256SUMS
# mount.lacuna and its like, which are the program under other names. mount(8) looks for them in /sbin alone.
for link in sbin/*; do
    [ -L "$link" ] || continue
    mkdir -p "$prefix/sbin"
    ln -sf ../bin/lacuna "$prefix/$link"
    [ "$prefix" = /usr ] || echo "for fstab and mount -t lacuna: ln -s $prefix/$link /sbin/"
done
echo "installed in $prefix: $("$prefix/bin/lacuna" --version)"
case :$PATH: in
*":$prefix/bin:"*) ;;
*) echo "$prefix/bin is not in your PATH" ;;
esac
