#!/bin/sh
# What tools that write signatures do to a block device that holds a lacuna disk: other-tools.sh LACUNA [FORMAT]
# prints a table in Markdown. Needs root and loop devices; each try has a new disk in a temporary directory.
set -eu
lacuna=$(realpath "$1")
format=${2:-sealed}
PATH="$PATH:/usr/sbin:/sbin"
dir=$(mktemp -d)
device=
mounted=
clean() {
    [ -z "$mounted" ] || "$lacuna" -q close "$dir/mnt" || true
    [ -z "$device" ] || losetup -d "$device" || true
    rm -rf "$dir"
}
trap clean EXIT
mkdir "$dir/mnt"
echo secret >"$dir/key"

new_disk() {
    truncate -s 0 "$dir/backing"
    truncate -s 400M "$dir/backing"
    device=$(losetup -f --show "$dir/backing")
    "$lacuna" -q create "$device" --format "$format" --key-file "$dir/key" --kdf-memory 1M --kdf-passes 1
}

end_disk() {
    losetup -d "$device"
    device=
}

# Whether everything of the disk reads, and with what the header is short of.
left() {
    if "$lacuna" -q check "$device" --read-only --key-file "$dir/key" >/dev/null 2>&1; then
        copies=$("$lacuna" info "$device" --json 2>/dev/null | grep -c "header copy" || true)
        if [ "$copies" = 0 ]; then echo "whole"; else echo "opens, header copies lost: $copies"; fi
    else
        echo "**destroyed**"
    fi
}

# The tool on a terminal; the answer to its questions is that of somebody who reads them.
on_terminal() {
    # shellcheck disable=SC2016
    printf 'n\nno\nNo\n' | script -q -e -c "$* 2>&1" /dev/null >"$dir/said" 2>&1
}

try() { # NAME COMMAND... (DEVICE stands for the device)
    name=$1
    program=$2
    shift
    if ! command -v "$program" >/dev/null 2>&1; then
        echo "| \`$name\` | not installed | | |"
        return
    fi
    new_disk
    words=$(echo "$*" | sed "s#DEVICE#$device#")
    "$lacuna" -q open "$device" "$dir/mnt" --mkfs ext4 --key-file "$dir/key" >/dev/null
    mounted=1
    # shellcheck disable=SC2086
    if $words </dev/null >"$dir/said" 2>&1; then open="goes ahead"; else open="refuses"; fi
    "$lacuna" -q close "$dir/mnt"
    mounted=
    open="$open; $(left)"
    end_disk

    new_disk
    words=$(echo "$*" | sed "s#DEVICE#$device#")
    if on_terminal "$words"; then asked="goes ahead"; else asked="stops"; fi
    if grep -qi 'lacuna\|oracleasm\|signature\|proceed\|(y/n)\|destroy\|contains' "$dir/said"; then asked="warns, $asked"; fi
    asked="$asked; $(left)"
    end_disk

    new_disk
    words=$(echo "$*" | sed "s#DEVICE#$device#")
    # shellcheck disable=SC2086
    if $words </dev/null >"$dir/said" 2>&1; then blind="goes ahead"; else blind="refuses"; fi
    blind="$blind; $(left)"
    end_disk
    echo "| \`$name\` | $open | $asked | $blind |"
}

echo "| tool | disk open | closed, on a terminal, answered with no | closed, in a script |"
echo "|---|---|---|---|"
try "mkfs.ext4" mkfs.ext4 DEVICE
try "mkfs.xfs" mkfs.xfs DEVICE
try "mkfs.btrfs" mkfs.btrfs DEVICE
try "mkswap" mkswap DEVICE
try "wipefs -a" wipefs -a DEVICE
try "parted mklabel gpt" parted DEVICE mklabel gpt
try "parted -s mklabel gpt" parted -s DEVICE mklabel gpt
try "pvcreate" pvcreate DEVICE
try "cryptsetup luksFormat" cryptsetup luksFormat --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file "$dir/key" DEVICE
try "dd of=DEVICE bs=1M count=1" dd if=/dev/zero of=DEVICE bs=1M count=1 conv=notrunc
