#!/bin/sh
# What deb-test.sh does in the clean root: the package is in /given.
set -eu

# Every path but those in which dpkg and others keep their own books; of the configuration the content too.
state() {
    find / -xdev \( -path /given -o -path /given.sh -o -path /tmp -o -path /proc -o -path /dev -o -path /run \
        -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache/man -o -path '/root/.*' \) -prune -o -print | sort
    find /etc /var/lib/systemd -xdev -type f ! -name '*.cache' -exec sha256sum {} + 2>/dev/null | sort
    dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n'
    # Programs that run and what they keep; /run/mount is mount's own.
    find /run -mindepth 1 ! -path '/run/mount*'
    cat /proc/[0-9]*/comm 2>/dev/null | grep lacuna || true
}

echo "== install"
state >/tmp/before
dpkg -i /given/lacuna_*.deb
dpkg --verify lacuna
test "$(dpkg-query -W -f '${db:Status-Abbrev}' lacuna)" = "ii "
dpkg-query -W -f '${Homepage}' lacuna | grep -q '^https://'

echo "== every manual page"
pages=$(dpkg -L lacuna | sed -n 's#^/usr/share/man/man\([0-9]\)/\(.*\)\.[0-9]\.gz$#\1 \2#p')
echo "$pages" | while read -r section page; do
    man -P cat --warnings "$section" "$page" >/tmp/page 2>/tmp/words
    if [ -s /tmp/words ] || ! grep -q '^NAME' /tmp/page; then
        echo "$page($section): $(cat /tmp/words)"
        exit 1
    fi
    # The index knows it too, with a line that says what it is for, unless it stands for another page.
    zcat "/usr/share/man/man$section/$page.$section.gz" | grep -q '^\.so ' ||
        whatis -s "$section" "$page" | grep -q -- ' - .'
done
echo "$(echo "$pages" | wc -l) pages"
test "$(echo "$pages" | wc -l)" -gt 30

echo "== files beside the program"
for part in completions/lacuna vendor-completions/_lacuna vendor_completions.d/lacuna.fish udev/rules.d/61-lacuna.rules \
    doc/lacuna/copyright doc/lacuna/third-party.gz; do
    dpkg -L lacuna | grep -q "/$part$"
done
bash -n /usr/share/bash-completion/completions/lacuna

echo "== a disk"
cd /tmp
mkdir scene
cd scene
printf 'a passphrase\n' >key
printf 'another one\n' >other
lacuna create disk.img --size 64M --key-file key --kdf-memory 1M --kdf-passes 1
lacuna info disk.img | grep -q sealed
file -m /usr/share/lacuna/magic:/usr/share/misc/magic disk.img key | tee words
uuid=$(lacuna info disk.img --json | sed -n 's/.*"uuid": "\(.*\)".*/\1/p')
grep -q "disk.img: lacuna disk, format sealed, header version 1, UUID $uuid" words
grep -q 'key: *ASCII text' words
lacuna key add disk.img --key-file key --new-key-file other
mkdir mnt
if [ -r /dev/fuse ] && lacuna open disk.img mnt --raw --key-file other; then
    head -c 1M /dev/urandom >data
    dd if=data of=mnt/disk bs=64k conv=notrunc,fsync 2>/dev/null
    lacuna status mnt | grep -q disk.img
    lacuna close mnt
    lacuna open disk.img mnt --raw --read-only --key-file key
    cmp -n 1048576 data mnt/disk
    lacuna close mnt
else
    echo "not opened: /dev/fuse cannot be used here"
fi
lacuna vault init vault --key-file key --kdf-memory 1M --kdf-passes 1
test -d /var/lib/lacuna/anchors
lacuna check disk.img --key-file key
cd /
rm -rf /tmp/scene

echo "== remove, then purge"
# As systemctl enable would.
for unit in /usr/lib/systemd/system/lacuna*; do
    [ ! -e "$unit" ] || ln -s "$unit" /etc/systemd/system/
done
dpkg --remove lacuna
test -d /var/lib/lacuna/anchors
dpkg --purge lacuna
state >/tmp/after
if ! diff /tmp/before /tmp/after; then
    echo "that is left, or was changed"
    exit 1
fi
echo "nothing is left"
