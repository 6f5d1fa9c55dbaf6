#!/bin/bash
# What lacuna does, on real files: a disk is made, filled, closed and opened again, and then an adversary
# compares two snapshots of it. usage: demo.sh PATH-OF-LACUNA
set -euo pipefail

lacuna=$(realpath "${1:-target/release/lacuna}")
export PATH="$PATH:/usr/sbin:/sbin"
work=$(mktemp -d "${TMPDIR:-/tmp}/lacuna-demo.XXXXXX")
server=""

finish() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
    if mountpoint -q "$work/mnt" 2>/dev/null; then "$lacuna" close "$work/mnt" || true; fi
    if ! mountpoint -q "$work/mnt" 2>/dev/null; then rm -rf "$work"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }
run() {
    printf '$ %s\n' "$*" | sed "s#$lacuna#lacuna#; s#$work/##g" >&3
    "$@"
}

exec 3>&1
cd "$work"
mkdir mnt files
printf 'a passphrase in a file, for the demonstration\n' >key

# Root in a container may lack what root usually has, so it is tried.
can_mount() {
    [ "$(id -u)" = 0 ] && [ -r /dev/fuse ] && losetup -f >/dev/null 2>&1 &&
        mount -t tmpfs lacuna-demo mnt 2>/dev/null && umount mnt
}
if can_mount; then way=mount; else way=nbd; fi

# Real files, a bounded amount of them.
{ find /usr/share/doc /usr/share/common-licenses /usr/share/zoneinfo -xdev -type f -size -200k -readable 2>/dev/null || true; } |
    head -n 3000 | tar -cf - -T - 2>/dev/null | tar -xf - -C files 2>/dev/null || true
for i in $(seq 1 200); do echo "note $i: $(seq -s ' ' 1 300)" >"files/note-$i.txt"; done
# The file in which one word will change, alone in its blocks.
for i in $(seq 1 500); do printf 'line %03d: meet at the harbour at eight, bring the papers\n' "$i"; done >files/plan.txt
count=$(find files -type f | wc -l)
size=$(du -sh files | cut -f1)

# Everything below takes the name of a cipher, which is also the name of the disk.
make_disk() {
    # One pass over 64 MiB: quick for a demonstration. Leave both options away for a real disk, and a guess
    # at the passphrase costs about a second on this machine.
    run "$lacuna" create "$1.img" --size 1G --cipher "$1" --key-file key --kdf-memory 64M --kdf-passes 1
}

serve() {
    run "$lacuna" serve "$1.img" --key-file key --socket nbd.sock --pid-file pid --fork
    server=$(cat pid)
    uri="nbd+unix:///?socket=$work/nbd.sock"
}

unserve() {
    kill "$server"
    # The disk is on the medium when nobody holds the medium any more.
    while "$lacuna" info "$1.img" --json | grep -q '"in_use": true'; do sleep 0.05; done
    server=""
}

fill() {
    if [ $way = mount ]; then
        run "$lacuna" open "$1.img" mnt --mkfs ext4 --key-file key
        run cp -r files mnt/
        run "$lacuna" close mnt
    else
        run mke2fs -q -t ext4 -d files plain.ext4 1G
        serve "$1"
        run qemu-img convert -n -f raw -O raw plain.ext4 "$uri"
        unserve "$1"
    fi
}

compare() {
    if [ $way = mount ]; then
        run "$lacuna" open "$1.img" mnt --key-file key --read-only
        run diff -r files mnt/files
        run "$lacuna" close mnt
    else
        serve "$1"
        run qemu-img compare -f raw -F raw plain.ext4 "$uri"
        unserve "$1"
    fi
    echo "all $count files came back, byte for byte"
}

# One word of one block is written in its place. On a mounted file system the time stamps of the file would
# change with it, so the word goes to the block itself: the place is asked of the file system, the block is
# changed through NBD.
change_one_word() {
    serve "$1"
    printf 'seven' >word
    run qemu-io -f raw -c "write -s word $place 5" "$uri" >/dev/null
    unserve "$1"
}

find_place() {
    serve "$1"
    run qemu-img convert -f raw -O raw "$uri" plain.img
    unserve "$1"
    place=$(LC_ALL=C grep -abo -m1 'line 250: meet at the harbour at eight' plain.img | head -n1 | cut -d: -f1)
    place=$((place + 33))
    rm -f plain.img
}

# What the adversary does: no key, two snapshots, cmp.
adversary() {
    cmp -l "$1.before" "$1.img" | awk -v data="$2" '
        { at = $1 - 1; if (at < data) next
          block = int((at - data) / 4096); unit = int((at % 4096) / 16)
          bytes[block]++; if (!((block, unit) in seen)) { seen[block, unit] = 1; units[block]++ } }
        END { best = -1
              for (b in units) { n++; if (best < 0 || units[b] > units[best]) best = b }
              printf "%d %d %d\n", n, units[best], bytes[best] }'
}

experiment() {
    find_place "$1"
    cp --sparse=always "$1.img" "$1.before"
    change_one_word "$1"
    data=$("$lacuna" info "$1.img" --json | sed -n 's/^ *"data_offset": \([0-9]*\).*/\1/p')
    read -r blocks units bytes < <(adversary "$1" "$data")
    rm -f "$1.before"
}

say "a disk of 1 GiB with the default cipher, gcm"
make_disk gcm
run "$lacuna" info gcm.img
say "$count real files ($size) go in by way of: $way"
fill gcm
say "closed, and opened again"
compare gcm
used=$("$lacuna" info gcm.img | sed -n 's/^medium *//p')

say "the adversary takes a snapshot, one word changes (eight -> seven), the adversary takes another"
experiment gcm
gcm_units=$units gcm_blocks=$blocks
say "the same with what everyone else ships: --cipher xts"
make_disk xts
fill xts
experiment xts
plain_units=$units plain_blocks=$blocks

say "summary"
echo "- $count files ($size) were written to an encrypted disk, closed, reopened and compared: no difference"
echo "- medium: $used"
echo "- one word of one file changed between two snapshots of the medium; its block has 256 units of 16 bytes"
echo "- with xts, the adversary sees $plain_blocks changed block, and in it $plain_units of 256 units changed: it knows where the word is"
echo "- with gcm, it sees that a block changed, and in it $gcm_units of 256 units: nothing about where"
if [ "$plain_units" -gt 2 ] || [ "$gcm_units" -ne 256 ]; then
    echo "that is not as it should be" >&2
    exit 1
fi
