#!/bin/sh
# A Debian with systemd in QEMU, in which tests mount disks at boot and shut down.
#
#   systemd-guest.sh get                         builds its root and fetches a kernel, once for all builds; needs root
#   systemd-guest.sh missing                     says what is missing here; says nothing if the guest can be run
#   systemd-guest.sh pack DIR TREE               makes DIR/initrd and DIR/root.qcow2: the root, with TREE copied over it
#   systemd-guest.sh boot DIR PARAMETERS DISK... runs it, its console on standard output; PARAMETERS are the kernel's, and a
#                                                DISK is a raw file, with options of QEMU's -drive after a comma
#
# The guest has the suite of the machine, so that programs built here run there. It is emulated; where there is a KVM that works,
# LACUNA_GUEST_ACCEL=kvm is much faster.
set -eu

kept=${LACUNA_SYSTEMD_GUEST_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/lacuna/systemd-guest}
# Nothing is loaded later: the root has no modules.
modules="virtio_pci virtio_blk crc32c_generic ext4 fuse loop autofs4"
packages=systemd,systemd-sysv,udev,kmod,mount,fuse3,e2fsprogs
# Longer than any boot takes: a guest that hangs ends with it.
seconds=${LACUNA_GUEST_SECONDS:-300}

fail() {
    echo "systemd-guest.sh: $*" >&2
    exit 1
}

missing() {
    if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
        echo "the guest is made of a kernel for x86-64 alone"
    elif ! command -v qemu-system-x86_64 >/dev/null 2>&1; then
        echo "this machine has no qemu-system-x86_64"
    elif [ ! -e "$kept/complete" ]; then
        echo "no root for the guest is in $kept; scripts/systemd-guest.sh get builds one"
    fi
}

# The modules that a module needs, those first that others need, and itself.
with_needed() { # TREE MODULE
    file=$(find "$1/lib/modules" -name "$2.ko" -o -name "$(echo "$2" | tr _ -).ko" | head -n 1)
    # What is built into the kernel needs no file.
    [ -n "$file" ] || { grep -qE "/($2|$(echo "$2" | tr _ -))\.ko" "$1"/lib/modules/*/modules.builtin && return 0; fail "the kernel has no module $2"; }
    for needed in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr , ' '); do
        # In a process of its own, for the names of files above.
        (with_needed "$1" "$needed")
    done
    echo "$file"
}

get() {
    [ ! -e "$kept/complete" ] || return 0
    [ "$(id -u)" = 0 ] || fail "only root can build the root of a system"
    command -v debootstrap >/dev/null 2>&1 || apt-get install -y -q --no-install-recommends debootstrap >/dev/null ||
        fail "debootstrap is missing"
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mkdir -p "$kept"
    work=$(mktemp -d "$kept/get.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    get_kernel "$work/kernel"
    debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" >"$work/log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 3 "$work/log")"
    trim "$work/root"
    truncate -s 1G "$work/root.ext4"
    mkfs.ext4 -q -F -d "$work/root" "$work/root.ext4"
    # Another may have been faster, with the same.
    if [ ! -e "$kept/complete" ]; then
        cp "$work/kernel/vmlinuz" "$work/kernel/busybox" "$kept/"
        rm -rf "$kept/modules"
        cp -r "$work/kernel/modules" "$kept/"
        mv "$work/root.ext4" "$kept/"
        : >"$kept/complete"
    fi
}

get_kernel() { # INTO
    mkdir -p "$1/modules" "$1/packages"
    depends() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1; }
    kernel=$(depends)
    [ -n "$kernel" ] || { apt-get update -q >/dev/null && kernel=$(depends); }
    [ -n "$kernel" ] || fail "apt knows no linux-image-cloud-amd64"
    (
        cd "$1/packages"
        apt-get download -q "$kernel" busybox-static >/dev/null 2>&1 || {
            apt-get update -q >/dev/null
            apt-get download -q "$kernel" busybox-static
        }
        for package in *.deb; do dpkg-deb -x "$package" .; done
    )
    cp "$1"/packages/boot/vmlinuz-* "$1/vmlinuz"
    cp "$1/packages/bin/busybox" "$1/"
    number=100
    for module in $modules; do
        for file in $(with_needed "$1/packages" "$module"); do
            name=$(basename "$file" .ko)
            ! ls "$1/modules"/*-"$name.ko" >/dev/null 2>&1 || continue
            number=$((number + 1))
            cp "$file" "$1/modules/$number-$name.ko"
        done
    done
    rm -rf "$1/packages"
}

# Leaves away what a test of mounts does not need.
trim() { # ROOT
    rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
    echo lacuna-guest >"$1/etc/hostname"
    echo 0123456789abcdef0123456789abcdef >"$1/etc/machine-id"
}

# Units that no test of mounts needs, and that cost an emulated machine seconds.
masked="apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
systemd-tmpfiles-clean.timer systemd-networkd.service systemd-resolved.service systemd-timesyncd.service
systemd-logind.service systemd-pstore.service getty.target systemd-hwdb-update.service systemd-update-utmp.service
systemd-update-utmp-runlevel.service systemd-rfkill.service systemd-sysusers.service ldconfig.service
systemd-journal-catalog-update.service systemd-machine-id-commit.service systemd-random-seed.service
systemd-journal-flush.service dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount
sys-fs-fuse-connections.mount modprobe@.service"

guest_init() {
    cat <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do $b insmod "$module"; done
$b mount -t ext4 /dev/vda /root
if [ ! -e /root/var/.packed ]; then
    $b cp -af /tree/. /root/
    $b touch /root/var/.packed
    $b sync
fi
$b umount /proc /sys
exec $b switch_root /root /sbin/init
END
}

pack() { # DIR TREE
    root=$(mktemp -d "${TMPDIR:-/tmp}/lacuna-guest.XXXXXX")
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/root"
    cp "$kept/busybox" "$root/bin/"
    cp -r "$kept/modules" "$root/"
    cp -a "$2" "$root/tree"
    mkdir -p "$root/tree/etc/systemd/system" "$root/tree/etc/systemd/journald.conf.d"
    for unit in $masked; do ln -sf /dev/null "$root/tree/etc/systemd/system/$unit"; done
    printf '[Journal]\nStorage=volatile\n' >"$root/tree/etc/systemd/journald.conf.d/guest.conf"
    # The devices that mounts wait for, of hundreds.
    mkdir -p "$root/tree/etc/systemd/system/systemd-udev-trigger.service.d"
    printf '[Service]\nExecStart=\nExecStart=udevadm trigger --action=add --subsystem-match=block\n' \
        >"$root/tree/etc/systemd/system/systemd-udev-trigger.service.d/guest.conf"
    guest_init >"$root/init"
    chmod +x "$root/init"
    image=$(realpath -m "$1/initrd")
    (cd "$root" && find . | "$kept/busybox" cpio -o -H newc) >"$image" 2>/dev/null
    qemu-img create -q -f qcow2 -b "$kept/root.ext4" -F raw "$1/root.qcow2"
}

boot() { # DIR PARAMETERS DISK...
    dir=$1 parameters=$2
    shift 2
    set -- -drive "file=$dir/root.qcow2,if=virtio,format=qcow2" $(for disk; do echo "-drive file=$disk,if=virtio,format=raw"; done)
    # It ends with whatever ends the timeout.
    exec timeout "$seconds" setpriv --pdeathsig KILL qemu-system-x86_64 -accel "${LACUNA_GUEST_ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 1024 \
        -nodefaults -no-user-config -no-reboot -display none -serial stdio -monitor none \
        -kernel "$kept/vmlinuz" -initrd "$dir/initrd" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 random.trust_cpu=on mitigations=off $parameters" "$@"
}

case ${1:-} in
get | missing | pack | boot)
    verb=$1
    shift
    "$verb" "$@"
    ;;
*) fail "say one of: get, missing, pack, boot" ;;
esac
