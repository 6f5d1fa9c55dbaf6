#!/usr/bin/env bash
# Builds examples/serve-a-disk, a program outside the workspace that uses the library, and lets real NBD clients write to the disk
# that it makes, in two runs of it. Usage: scripts/outside.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/ensure-packages.sh
work=$(mktemp -d)
trap 'rm -rf "$work"; rm -f examples/serve-a-disk/Cargo.lock' EXIT
# The versions that everything else here is tested with.
cp Cargo.lock examples/serve-a-disk/Cargo.lock
cargo build --quiet --manifest-path examples/serve-a-disk/Cargo.toml --target-dir target/outside

head -c 1M /dev/urandom > "$work/text"
for run in write read; do
    mkfifo "$work/input"
    target/outside/debug/serve-a-disk "$work/disk.img" "$work/socket" < "$work/input" > "$work/uri" &
    server=$!
    exec 3> "$work/input"
    echo "correct horse" >&3
    until [ -s "$work/uri" ]; do
        kill -0 $server || exit 1
        sleep 0.1
    done
    if [ $run = write ]; then
        nbdcopy --flush "$work/text" "$(cat "$work/uri")"
    else
        nbdcopy "$(cat "$work/uri")" "$work/back"
        cmp --bytes 1048576 "$work/back" "$work/text"
    fi
    exec 3>&-
    wait $server
    rm "$work/input" "$work/uri"
done
echo "a program outside the workspace made a disk, served it, closed it, and opened it again"
