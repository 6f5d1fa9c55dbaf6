#!/bin/sh
# What release-test.sh does in a clean root: the unpacked release is in /given.
set -eu

state() {
    find / -xdev \( -path /given -o -path /tmp -o -path /proc -o -path /dev -o -path /run -o -path /var/cache/man \
        -o -path /var/lib/lacuna \) -prune -o -print | sort
}

state >/tmp/before
release=$(echo /given/lacuna-*/)
"$release/install.sh"
hash -r
for unit in /usr/local/lib/systemd/system/lacuna*; do
    [ ! -e "$unit" ] || ! grep -q /usr/bin/lacuna "$unit" || {
        echo "$unit names another program"
        exit 1
    }
done
man -P cat lacuna-open | grep -q '^EXIT STATUS'

cd /tmp
mkdir scene
cd scene
printf 'a passphrase\n' >key
lacuna create disk.img --size 64M --key-file key --kdf-memory 1M --kdf-passes 1
lacuna create levels.img --size 64M --format deniable --levels 1 --key-file key --kdf-memory 1M --kdf-passes 1
file -m /usr/local/share/lacuna/magic disk.img | grep -q 'lacuna disk, format sealed'
lacuna bench --millis 5 --kdf-memory 1M
mkdir mnt
if [ -r /dev/fuse ] && lacuna open disk.img mnt --raw --key-file key; then
    head -c 1M /dev/urandom >data
    dd if=data of=mnt/disk bs=64k conv=notrunc,fsync 2>/dev/null
    lacuna close mnt
    lacuna open disk.img mnt --raw --read-only --key-file key
    cmp -n 1048576 data mnt/disk
    lacuna close mnt
else
    echo "not opened: /dev/fuse cannot be used here"
fi
lacuna check disk.img --key-file key
# Ceph's library is looked for when it is needed, and its absence is told.
lacuna info rados:pool/disk 2>words && exit 1
grep -q librados words || {
    cat words
    exit 1
}
cd /
rm -rf /tmp/scene

"$release/install.sh" --uninstall
state >/tmp/after
diff /tmp/before /tmp/after
