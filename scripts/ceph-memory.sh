#!/bin/sh
# Memory of a server of a disk in a Ceph pool: idle, and under random 4 KiB reads and writes all over a disk of 10 TiB, with
# little cache and with more. What the cache adds must be what --cache says; the rest is the program, Ceph's client library
# and what they need for requests under way.
#
# scripts/ceph-cluster.sh run -- scripts/ceph-memory.sh LACUNA [SECONDS]
set -eu
lacuna=$(realpath "$1")
seconds=${2:-30}
[ -n "${LACUNA_CEPH_CONF:-}" ] || { echo "ceph-memory: no cluster: run it by scripts/ceph-cluster.sh run --" >&2; exit 1; }
export CEPH_CONF="$LACUNA_CEPH_CONF"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; wait; rm -rf "$work"' EXIT
cd "$work"
echo "a passphrase" >key
for case in "idle 1G 64M" "busy 10T 8M" "busy 10T 64M"; do
    # shellcheck disable=SC2086
    set -- $case
    name=$1 size=$2 cache=$3
    disk="rados:lacuna/memory-$name-$cache"
    "$lacuna" -q create "$disk" --size "$size" --key-file key --kdf-memory 8M --kdf-passes 1
    "$lacuna" serve "$disk" --socket s --key-file key --cache "$cache" >/dev/null 2>&1 &
    server=$!
    while [ ! -S s ]; do sleep 0.1; done
    if [ "$name" = busy ]; then
        uri="nbd+unix:///?socket=$work/s"
        fio --name=j --ioengine=nbd --uri="$uri" --rw=randrw --bs=4k --iodepth=64 --size="$(nbdinfo --size "$uri")" \
            --norandommap --time_based --runtime="$seconds" >/dev/null
    else
        sleep 2
    fi
    awk -v what="$name, $size, --cache $cache" '/VmHWM/ { hwm = $2 } /VmRSS/ { rss = $2 } /Threads/ { threads = $2 }
        END { printf "%s: at most %d MiB, now %d MiB, %d threads\n", what, hwm / 1024, rss / 1024, threads }' "/proc/$server/status"
    kill "$server"
    wait "$server" || true
    server=
    rm -f s
done
