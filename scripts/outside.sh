#!/usr/bin/env bash
# Builds the programs in examples/, which lie outside the workspace and use the library as everybody can, and has real clients use
# the disks that they make: serve-a-disk, and sixth-format, which has a format of its own. Usage: scripts/outside.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
scripts/ensure-packages.sh
work=$(mktemp -d)
server=""
finish() {
    # A program ends with its standard input.
    exec 3>&-
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$work"
    rm -f examples/*/Cargo.lock
}
trap finish EXIT
for example in serve-a-disk sixth-format; do
    # The versions that everything else here is tested with.
    cp Cargo.lock "examples/$example/Cargo.lock"
    cargo fmt --manifest-path "examples/$example/Cargo.toml" --check
    cargo build --quiet --manifest-path "examples/$example/Cargo.toml" --target-dir target/outside
done

# Starts a program with the passphrase on its standard input, which stays open, and waits for the line that it says.
start() { # COMMAND…
    mkfifo "$work/input"
    "$@" <"$work/input" >"$work/said" &
    server=$!
    exec 3>"$work/input"
    echo "correct horse" >&3
    until [ -s "$work/said" ]; do
        kill -0 "$server" || exit 1
        sleep 0.1
    done
}

stop() {
    exec 3>&-
    wait "$server"
    server=""
    rm "$work/input" "$work/said"
}

# Runs a command with a passphrase on its standard input, which has to end with this exit code and say these words.
ends() { # CODE WORDS PASSPHRASE COMMAND…
    local code=0
    echo "$3" | "${@:4}" >"$work/words" 2>&1 || code=$?
    if [ "$code" != "$1" ] || ! grep -q "$2" "$work/words"; then
        echo "${*:4}: exit code $code instead of $1, or without \"$2\":" >&2
        cat "$work/words" >&2
        exit 1
    fi
}

head -c 1M /dev/urandom >"$work/text"
plain=target/outside/debug/serve-a-disk
start "$plain" "$work/disk.img" "$work/socket"
nbdcopy --flush "$work/text" "$(cat "$work/said")"
stop
start "$plain" "$work/disk.img" "$work/socket"
nbdcopy "$(cat "$work/said")" "$work/back"
cmp --bytes 1048576 "$work/back" "$work/text"
stop
echo "a program outside the workspace made a disk, served it, closed it, and opened it again"

sixth=target/outside/debug/sixth-format
disk=$work/sixth.img
ends 0 "made" "correct horse" "$sixth" create "$disk"
ends 1 "unknown-32769" "correct horse" "$plain" "$disk" "$work/socket"
ends 2 "passphrase" "wrong horse" "$sixth" check "$disk"

mkdir "$work/files" "$work/mount"
cp "$work/text" "$work/files/text"
mke2fs -q -t ext4 -d "$work/files" "$work/ext4" 64M
start "$sixth" serve "$disk" "$work/socket"
nbdcopy --flush "$work/ext4" "$(cat "$work/said")"
stop
start "$sixth" serve "$disk" "$work/socket"
nbdcopy "$(cat "$work/said")" "$work/served"
cmp "$work/served" "$work/ext4"
stop
echo "a disk of a format that lacuna does not have was served"

# Root in a container may lack what root usually has, so it is tried.
can_mount() {
    [ "$(id -u)" = 0 ] && [ -r /dev/fuse ] && losetup -f >/dev/null 2>&1 &&
        mount -t tmpfs outside "$work/mount" 2>/dev/null && umount "$work/mount"
}
if can_mount; then
    start "$sixth" mount "$disk" "$work/mount"
    cmp "$work/mount/text" "$work/text"
    cp "$work/text" "$work/mount/copy"
    stop
    start "$sixth" mount "$disk" "$work/mount"
    cmp "$work/mount/copy" "$work/text"
    stop
    echo "it was mounted, and kept a file"
else
    echo "skipped: a mounted disk of that format, which takes root, FUSE and loop devices"
fi

ends 0 " 0 are bad" "correct horse" "$sixth" check "$disk"
# Both slots of block 0, which begin behind the header.
dd if=/dev/urandom of="$disk" bs=512 seek=2048 count=18 conv=notrunc status=none
ends 10 "block 0 does not verify" "correct horse" "$sixth" check "$disk"
echo "it was checked, and damage was told"
