#!/bin/sh
# What the guest of systemd_guest.rs does when it has booted: it checks on every disk what the boot before left there, writes
# anew, and shuts down or waits for its power to be cut. The parameters of the kernel say which boot it is.
exec >/dev/ttyS0 2>&1
for word in $(cat /proc/cmdline); do
    case $word in
    guest.boot=*) boot=${word#*=} ;;
    guest.before=*) before=${word#*=} ;;
    guest.end=*) end=${word#*=} ;;
    esac
done

# By the log of the kernel: a question for a passphrase on the console hangs the console up, and later lines would be lost.
say() { echo "<2>guest: $*" >/dev/kmsg; }
fail() {
    say "failed: $*"
    systemctl --no-pager --failed
    journalctl --no-pager -b -u 'srv-*' -u 'lacuna*' -u 'store@*' | tail -n 40
    systemctl poweroff
    exit 1
}

check() { # DIRECTORY
    ls "$1" >/dev/null || fail "$1 cannot be read"
    case "$(findmnt -nro FSTYPE,SOURCE "$1" | tail -n 1)" in
    "ext4 /dev/loop"*) ;;
    *) fail "$1 is not mounted: $(findmnt -nr "$1")" ;;
    esac
    [ "$boot" != 1 ] || return 0
    [ "$(cat "$1/boot")" = $((boot - 1)) ] || fail "$1 is of boot $(cat "$1/boot")"
    (cd "$1" && sha256sum --quiet -c synced.sum) || fail "synced data in $1 is not there"
    [ "$before" = cut ] || (cd "$1" && sha256sum --quiet -c late.sum) || fail "the last writes in $1 are not there"
}

write() { # DIRECTORY
    cd "$1" || fail "$1 is gone"
    head -c 1M /dev/urandom >synced
    sha256sum synced >synced.sum
    echo "$boot" >boot
    sync -f .
    # Nobody syncs this. It must survive a shutdown.
    head -c 4M /dev/urandom >late
    sha256sum late >late.sum
    cd /
}

# A unit that has no credential has a person asked. When it is stopped, it waits for who is still there, and no longer.
asked() {
    systemctl stop lacuna-serve@served.socket lacuna-serve@served.service
    systemctl start --no-block lacuna@asked.service
    question=
    tries=0
    while [ -z "$question" ]; do
        question=$(ls /run/systemd/ask-password/ask.* 2>/dev/null | head -n 1)
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || fail "lacuna@asked.service asks for no passphrase"
        sleep 1
    done
    tr -d '\n' </etc/lacuna/key | /lib/systemd/systemd-reply-password 1 "$(sed -n 's/^Socket=//p' "$question")"
    systemctl start lacuna@asked.service || fail "lacuna@asked.service does not start with the passphrase"
    (cd /srv/served && exec sleep 6) &
    sleep 1
    begun=$(cut -d. -f1 /proc/uptime)
    systemctl stop lacuna@asked.service
    [ "$(systemctl show -p Result --value lacuna@asked.service)" = success ] || fail "lacuna@asked.service did not end well"
    [ $(($(cut -d. -f1 /proc/uptime) - begun)) -lt 60 ] || fail "lacuna@asked.service did not end when it was idle"
}

# A disk with levels. `one` has its level 0 alone, `both` the deeper one too.
begin_store() { # UNIT
    systemctl start "store@$1.service" || fail "store@$1.service does not start"
    head -c 1M /dev/urandom >/srv/store/file
}

end_store() { # UNIT RESULT
    begun=$(cut -d. -f1 /proc/uptime)
    systemctl stop "store@$1.service"
    # At the speed of the cover, what is pending below would take five minutes.
    [ $(($(cut -d. -f1 /proc/uptime) - begun)) -lt 80 ] || fail "store@$1.service took too long"
    result=$(systemctl show -p Result --value "store@$1.service")
    [ "$result" = "$2" ] || fail "store@$1.service ended with $result, not $2"
    ! grep -q ' /srv/\(store\|other\) .* ext4 ' /proc/self/mountinfo || fail "store@$1.service left something mounted"
}

put() { # NAME BYTES
    head -c "$2" /dev/urandom >"/srv/other/$1"
    (cd /srv/other && sha256sum "$1" >"/guest/$1.sum")
    sync -f /guest
}

has() { # NAME
    (cd /srv/other && sha256sum --quiet -c "/guest/$1.sum") || fail "$1 is not on the deeper level"
}

# A log must not tell that there is a deeper level.
told_nothing() {
    # A disk on flash has no levels.
    ! journalctl --no-pager -b -u 'store@*' -u lacuna-sleep.service | grep -v chip | grep '/srv/other\|level 1\|hidden\|waited\|KiB' || fail "a log tells too much"
}

end_in_units() {
    begin_store one
    end_store one success
    begin_store both
    put few 64K
    end_store both success
    begin_store both
    has few
    put many 24M
    # As where a medium fails.
    end_store both exit-code
    [ "$(systemctl show -p ExecMainStatus --value store@both.service)" = 20 ] || fail "store@both.service has another exit code"
    systemctl reset-failed store@both.service
    begin_store both
    has few
    end_store both success
    told_nothing
}

recoverable() {
    lacuna info nand:/guest/chip.img --json | tr -d ' \n' | sed -n 's/.*"recoverable":\([0-9]*\).*/\1/p'
}

# A disk on flash that is in use stays open when the machine goes to sleep. What was deleted on it is gone then.
purge_before_sleep() {
    lacuna open nand:/guest/chip.img /srv/chip --key-file /etc/lacuna/key --purge-period 0 || fail "the disk on flash does not open"
    head -c 256K /dev/urandom >/srv/chip/file
    sync -f /srv/chip
    dd if=/dev/urandom of=/srv/chip/file bs=4K count=64 conv=notrunc,fsync 2>/dev/null
    before_purge=$(recoverable)
    [ "${before_purge:-0}" -ge 262144 ] || fail "overwritten data on flash is not recoverable: ${before_purge:-no answer}"
    (cd /srv/chip && exec sleep 1000) &
    user=$!
    sleep 1
    # It fails if it says so of what is in use; it must purge that in any case.
    systemctl start lacuna-sleep.service || systemctl reset-failed lacuna-sleep.service
    grep -q ' /srv/chip .* ext4 ' /proc/self/mountinfo || fail "a disk on flash that was in use did not stay open"
    # Its file system may have written a little since.
    [ "$(recoverable)" -lt 262144 ] || fail "lacuna-sleep.service left $(recoverable) bytes recoverable on flash"
    kill "$user"
    wait "$user"
}

end_before_sleep() {
    begin_store both
    put dozing 64K
    systemctl start lacuna-sleep.service || fail "lacuna-sleep.service failed"
    ! grep ' /srv/.* ext4 ' /proc/self/mountinfo || fail "lacuna-sleep.service left something mounted"
    begin_store both
    has dozing
    end_store both success
    told_nothing
}

# An NBD client of lacuna-serve@served, until it is killed.
connect() {
    exec perl -MIO::Socket::UNIX -e '
        my $server = IO::Socket::UNIX->new("/run/lacuna-nbd/served.sock") or die "no server: $!";
        sysread($server, my $greeting, 18) == 18 or die "no greeting";
        # Fixed newstyle, no zeroes; then the export with an empty name.
        syswrite($server, pack("N", 3) . "IHAVEOPT" . pack("NN", 1, 0));
        sysread($server, my $export, 10) == 10 or die "no export";
        sleep 1000;
    '
}

# A served disk that has a client stays open when the machine goes to sleep, and its client too. A disk with levels
# beside it is closed.
sleep_beside_client() {
    systemctl start lacuna-serve@served.service || fail "lacuna-serve@served.service does not start"
    connect &
    client=$!
    tries=0
    until lacuna status /dev/vdg --json | tr -d ' \n' | grep -q '"clients":1[,}]'; do
        tries=$((tries + 1))
        [ "$tries" -lt 30 ] || fail "the client is not counted: $(lacuna status /dev/vdg --json)"
        sleep 1
    done
    begin_store both
    put beside 64K
    ! systemctl start lacuna-sleep.service || fail "lacuna-sleep.service does not say that a disk has a client"
    systemctl reset-failed lacuna-sleep.service
    journalctl --no-pager -b -u lacuna-sleep.service | grep -q "1 client is connected: perl" || fail "the journal does not name the client"
    ! grep -q ' /srv/.* ext4 ' /proc/self/mountinfo || fail "lacuna-sleep.service left something mounted beside a client"
    kill -0 "$client" || fail "the client lost its disk"
    [ "$(systemctl is-active lacuna-serve@served.service)" = active ] || fail "a disk with a client was closed"
    kill "$client"
    wait "$client"
    systemctl start lacuna-sleep.service || fail "lacuna-sleep.service failed after the client had left"
    [ "$(lacuna list)" = "nothing is open" ] || fail "lacuna-sleep.service left something open: $(lacuna list)"
    begin_store both
    has beside
    end_store both success
    told_nothing
}

say "boot $boot is up after $(cut -d' ' -f1 /proc/uptime) s"
if [ "$boot" = 1 ]; then
    # The key of this machine encrypts the credential, so it is made here.
    mkdir -p /etc/credstore.encrypted
    systemd-creds encrypt --with-key=host --name=lacuna.passphrase /etc/lacuna/key /etc/credstore.encrypted/lacuna.private >/dev/null ||
        fail "no credential could be made"
    systemctl enable --now lacuna@private.service || fail "lacuna@private.service does not start"
    systemctl start lacuna-serve@served.service || fail "lacuna-serve@served.service does not start"
    [ -S /run/lacuna-nbd/served.sock ] || fail "no socket for clients"
    asked
fi
[ "$(systemctl show -p StatusText --value lacuna@private.service)" = open ] || fail "lacuna@private.service is not open"
for at in /srv/boot /srv/auto /srv/private /srv/slow; do
    check "$at"
    write "$at"
done
# It is closed when nobody used it for a while, and opened again by the next boot, or who enters.
# To look at its path would be use.
tries=0
while grep -q ' /srv/auto .* ext4 ' /proc/self/mountinfo; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "/srv/auto stays open"
    sleep 1
done
[ "$(cat /srv/auto/boot)" = "$boot" ] || fail "/srv/auto does not open again"
# Ends of a disk with levels: by units, by poweroff, by a cut of power, before sleep.
case $boot in
1) end_in_units ;;
2 | 4)
    begin_store both
    [ "$before" != cut ] || has cut.other
    # Nobody syncs this. A poweroff must take it along.
    put late.other 64K
    ;;
3 | 5)
    begin_store both
    has late.other
    put cut.other 64K
    sync -f /srv/other
    ;;
6)
    begin_store both
    has cut.other
    end_store both success
    purge_before_sleep
    end_before_sleep
    sleep_beside_client
    ;;
esac
if [ "$end" = hung ]; then
    # Its device takes a few writes and then none.
    mount /srv/hung || fail "/srv/hung cannot be mounted"
    head -c 16M /dev/urandom >/srv/hung/file
fi
say "boot $boot is good"
case $end in
cut) sleep 1000 ;;
*)
    systemctl poweroff
    ;;
esac
