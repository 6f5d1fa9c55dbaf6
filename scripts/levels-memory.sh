#!/bin/sh
# Memory of a server with all levels of a disk of 1 TiB (sparse) open and busy: random 4 KiB reads and writes on four levels at
# once.
#
# scripts/levels-memory.sh LACUNA [SECONDS] [DIR]
set -eu
lacuna=$(realpath "$1")
seconds=${2:-15}
work=$(mktemp -d -p "${3:-/var/tmp}")
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work"
for format in deniable oblivious; do
    keys=
    for level in 0 1 2 3; do
        echo "passphrase $level" >"k$level"
        keys="$keys --key-file k$level"
    done
    # shellcheck disable=SC2086
    "$lacuna" -q create d.img --format $format --levels 4 --size 1T $keys --kdf-memory 8M --kdf-passes 1
    # shellcheck disable=SC2086
    "$lacuna" serve d.img --socket s $keys --cache 64M >/dev/null 2>&1 &
    server=$!
    while [ ! -S s ]; do sleep 0.1; done
    for level in 0 1 2 3; do
        uri="nbd+unix:///$level?socket=$work/s"
        fio --name=j --ioengine=nbd --uri="$uri" --rw=randrw --bs=4k --iodepth=32 --size="$(nbdinfo --size "$uri")" \
            --norandommap --time_based --runtime="$seconds" >/dev/null 2>&1 &
    done
    sleep "$seconds"
    awk -v format=$format '/VmHWM/ { printf "%s: at most %d MiB with --cache 64M\n", format, $2 / 1024 }' "/proc/$server/status"
    kill -9 "$server"
    wait || true
    server=
    rm -f d.img s
done
