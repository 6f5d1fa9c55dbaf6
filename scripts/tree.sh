#!/bin/sh
# A whole tree of real files (default /usr/share) onto ext4 on an encrypted disk: copied, closed, reopened,
# compared with diff -r; then removed, and its space given back with fstrim. Needs root, for the loop mount.
# Usage: scripts/tree.sh LACUNA [TREE]
set -eu
lacuna=$(realpath "$1")
tree=${2:-/usr/share}

if [ "$(id -u)" != 0 ] || ! losetup -f >/dev/null 2>&1; then
    echo "skipped: a loop mount takes root and loop devices"
    exit 0
fi
work=$(mktemp -d)
cleanup() {
    if mountpoint -q "$work/mnt"; then "$lacuna" close "$work/mnt" || umount -l "$work/mnt"; fi
    rm -rf "$work"
}
trap cleanup EXIT INT TERM
mkdir "$work/mnt"
echo "a passphrase for this run alone" >"$work/key"
size=$(($(du -sm "$tree" | cut -f1) * 2 + 1024))M
used() { echo "$(($(stat -c %b "$work/disk.img") / 2048)) MiB"; }

"$lacuna" create "$work/disk.img" --size "$size" --key-file "$work/key" --kdf-memory 64M --kdf-passes 1
"$lacuna" open "$work/disk.img" "$work/mnt" --mkfs ext4 --key-file "$work/key"
cp -a "$tree" "$work/mnt/tree"
files=$(find "$work/mnt/tree" -type f | wc -l)
"$lacuna" close "$work/mnt"
"$lacuna" open "$work/disk.img" "$work/mnt" --key-file "$work/key"
diff -r --no-dereference "$tree" "$work/mnt/tree"
echo "$files files of $tree came back, byte for byte; the host file takes $(used)"
rm -rf "$work/mnt/tree"
# ext4 trims only what its journal has let go of.
sync "$work/mnt"
fstrim "$work/mnt"
"$lacuna" close "$work/mnt"
echo "after removing them and fstrim it takes $(used)"
"$lacuna" check "$work/disk.img" --key-file "$work/key"
