#!/bin/sh
# A small Linux in QEMU, made of Debian's kernel, in which tests run programs on flash under UBI.
#
#   ubi-guest.sh get                          fetches the kernel and two packages of tools, once for all builds
#   ubi-guest.sh missing                      says what is missing here; says nothing if a guest can be run
#   ubi-guest.sh pack IMAGE SCRIPT PROGRAM... makes the guest's root: what it does, and programs with their libraries
#   ubi-guest.sh boot IMAGE FLASH             runs it, its console on standard output; FLASH is a file that it can keep a chip in
#
# The script runs in the guest's shell, after what `guest_init` below defines. Programs are in /guest there.
set -eu

kept=${LACUNA_GUEST_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/lacuna/guest}
# What tests load themselves. All that these need is loaded before.
modules="ubi nandsim phram"
# Longer than any test runs: a guest that hangs ends with it.
seconds=${LACUNA_GUEST_SECONDS:-300}

fail() {
    echo "ubi-guest.sh: $*" >&2
    exit 1
}

missing() {
    if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
        echo "the guest is made of a kernel for x86-64 alone"
    elif ! command -v qemu-system-x86_64 >/dev/null 2>&1; then
        echo "this machine has no qemu-system-x86_64"
    elif [ ! -e "$kept/complete" ]; then
        echo "no kernel for the guest is in $kept; scripts/ubi-guest.sh get fetches one"
    fi
}

# The modules that a module needs, those first that others need, and itself.
with_needed() { # TREE MODULE
    file=$(find "$1/lib/modules" -name "$2.ko" -o -name "$(echo "$2" | tr _ -).ko" | head -n 1)
    [ -n "$file" ] || fail "the kernel has no module $2"
    for needed in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr , ' '); do
        # In a process of its own, for the names of files above.
        (with_needed "$1" "$needed")
    done
    echo "$file"
}

get() {
    [ ! -e "$kept/complete" ] || return 0
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || fail "only apt-get can fetch a kernel"
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    if [ -z "$kernel" ]; then
        apt-get update -q
        kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    fi
    [ -n "$kernel" ] || fail "apt knows no linux-image-amd64"
    mkdir -p "$kept"
    work=$(mktemp -d "$kept/get.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    (
        cd "$work"
        apt-get download -q "$kernel" busybox-static mtd-utils >/dev/null 2>&1 || {
            apt-get update -q
            apt-get download -q "$kernel" busybox-static mtd-utils
        }
        for package in *.deb; do
            # Of the kernel's modules only a few hundredths are needed.
            dpkg-deb --fsys-tarfile "$package" | tar x --wildcards --no-wildcards-match-slash \
                --exclude='./usr/share' --exclude='*/net' --exclude='*/gpu' --exclude='*/media' --exclude='*/sound'
        done
    )
    mkdir -p "$work/kept/bin" "$work/kept/modules"
    cp "$work"/boot/vmlinuz-* "$work/kept/vmlinuz"
    cp "$work/bin/busybox" "$work/kept/bin/"
    for tool in ubiattach ubidetach ubimkvol; do cp "$work/usr/sbin/$tool" "$work/kept/bin/"; done
    number=100
    for module in $modules; do
        for file in $(with_needed "$work" "$module"); do
            name=$(basename "$file" .ko)
            ! ls "$work/kept/modules"/*-"$name.ko" >/dev/null 2>&1 || continue
            number=$((number + 1))
            case " $modules " in
            *" $name "*) cp "$file" "$work/kept/modules/late-$name.ko" ;;
            *) cp "$file" "$work/kept/modules/$number-$name.ko" ;;
            esac
        done
    done
    echo "$kernel" >"$work/kept/kernel"
    # Another may have been faster, with the same.
    [ -e "$kept/complete" ] || cp -r "$work/kept/." "$kept/"
    : >"$kept/complete"
}

guest_init() {
    cat <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t debugfs debugfs /sys/kernel/debug
mount -t tmpfs tmpfs /tmp
for module in /modules/1*.ko; do insmod "$module"; done

# Loads a module with parameters.
load() { module=$1; shift; insmod "/modules/late-$module.ko" "$@"; }

# Prints the number of the MTD device of this name.
mtd_named() { sed -n "s/^mtd\([0-9]*\): .*\"$1.*\"\$/\1/p" /proc/mtd; }

# A chip of 2048-byte pages in this guest's memory, with parameters of nandsim more, as an MTD device.
nand_chip() { load nandsim id_bytes=0x20,0xa1,0x00,0x15 "$@"; }

# The memory that is kept in a file outside, as an MTD device to copy a chip to and from: UBI takes no such device, and
# nandsim's own file is not read again by the next kernel.
kept_flash() {
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor") $(cat "$device/device")" = "0x1af4 0x1110" ] || continue
        set -- $(sed -n 3p "$device/resource")
        echo 1 >"$device/enable"
        load phram phram=kept,"$1",$(($2 - $1 + 1)),131072
    done
}

cd /tmp
. /guest/script
echo "guest: it ends here"
poweroff -f
END
}

pack() { # IMAGE SCRIPT PROGRAM...
    image=$(realpath -m "$1") script=$2
    shift 2
    root=$(mktemp -d "${TMPDIR:-/tmp}/lacuna-guest.XXXXXX")
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root/bin" "$root/sbin" "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/guest"
    cp -r "$kept/bin" "$kept/modules" "$root/"
    guest_init >"$root/init"
    chmod +x "$root/init"
    cp "$script" "$root/guest/script"
    for program in "$@"; do
        to=$root/guest/$(basename "$program")
        # What debuggers need is most of it.
        strip -o "$to" "$program" 2>/dev/null || cp "$program" "$to"
    done
    for program in "$@" "$kept"/bin/*; do
        # Nothing for a program without shared libraries.
        ldd "$program" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p'
    done | sort -u | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    (cd "$root" && find . | "$kept/bin/busybox" cpio -o -H newc) >"$image" 2>/dev/null
}

boot() { # IMAGE FLASH
    # The device's memory is the file, so that each write is there as soon as it is done.
    # It ends with whatever ends the timeout.
    exec timeout "$seconds" setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg -cpu max -m 512 -nodefaults -no-user-config -no-reboot \
        -display none -serial stdio -monitor none -kernel "$kept/vmlinuz" -initrd "$1" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 random.trust_cpu=on" \
        -object "memory-backend-file,id=flash,share=on,mem-path=$2,size=$(stat -c %s "$2")" \
        -device ivshmem-plain,memdev=flash
}

case ${1:-} in
get | missing | pack | boot)
    verb=$1
    shift
    "$verb" "$@"
    ;;
*) fail "say one of: get, missing, pack, boot" ;;
esac
