#!/bin/sh
# A small Ceph cluster on loopback, for tests and measurements: one monitor, one manager and three BlueStore OSDs
# whose devices are sparse files; nothing outside its folder is touched, and no root is needed.
#
#   ceph-cluster.sh start DIR [ec]     start it, or whatever of it does not run; with a replicated pool `lacuna` and,
#                                      if asked for, the erasure-coded pool `lacuna-ec`
#   ceph-cluster.sh stop DIR           stop its daemons; `start` takes it up again
#   ceph-cluster.sh destroy DIR        stop it at once and remove the folder
#   ceph-cluster.sh kill-osd DIR N     kill OSD N as a power cut would
#   ceph-cluster.sh start-osd DIR N    start OSD N again and wait until the monitor counts it as up
#   ceph-cluster.sh status DIR         what Ceph says about it
#   ceph-cluster.sh run [ec] -- COMMAND...
#                                      start one in a temporary folder, run COMMAND with LACUNA_CEPH_CONF and
#                                      LACUNA_CEPH_DIR set, remove it whatever happens; exits as COMMAND does.
#                                      Without Ceph's packages: says so and runs COMMAND without a cluster.
#
# Clients take DIR/ceph.conf, which names the keyring of client.admin. Daemons' words are in DIR/*.log.
set -eu

export PATH="$PATH:/usr/sbin:/sbin"
unset CEPH_ARGS CEPH_CONF 2>/dev/null || true
here=$(dirname "$0")
osds="0 1 2"
pool=lacuna
ec_pool=lacuna-ec
# The devices are sparse, but no space that Ceph gives up goes back to the file system. So it is to take a used place
# again before a new one (best fit, never first fit), and what it may take in all is bounded: LACUNA_CEPH_OSD_GIB
# for each OSD.
osd_size=$((${LACUNA_CEPH_OSD_GIB:-12} << 30))
# Bytes that must be free to start with: what an empty cluster takes, and a reserve for tests. An OSD that finds the
# file system full ends itself.
least_free=$((6 << 30))
# How long anything may take before it counts as failed; a healthy start takes a tenth of it.
patience=120

fail() {
    echo "ceph-cluster: $*" >&2
    exit 1
}

have_ceph() {
    for program in ceph ceph-mon ceph-mgr ceph-osd ceph-authtool monmaptool; do
        command -v "$program" >/dev/null 2>&1 || return 1
    done
}

need_ceph() {
    have_ceph || fail "Ceph's daemons are not installed; on Debian, as root:" \
        "apt-get install --no-install-recommends ceph-mon ceph-mgr ceph-osd ceph-common"
}

# Sets `dir` to the absolute path of the folder. What Ceph's configuration reads as a separator is refused.
set_dir() {
    [ -n "${1:-}" ] || fail "which folder? See the first lines of $0"
    dir=$(realpath -m -- "$1")
    case "$dir" in
    *[!A-Za-z0-9/._+@:-]*) fail "$dir: Ceph takes no folder of such a name; expected letters, digits and /._+@:- only" ;;
    esac
}

need_cluster() {
    [ -e "$dir/created" ] || fail "$dir: no cluster is there; create one with: $0 start $dir"
}

# The interpreter that `ceph` itself names, which has Ceph's modules; the first one on the path need not.
python() { sed -n '1s/^#! *//p' "$(command -v ceph)"; }

# Given up in the end: should the monitor go while it is asked, ceph waits for it for ever.
ceph_() { timeout "$patience" ceph --conf "$dir/ceph.conf" --connect-timeout 30 "$@"; }

# The process of daemon NAME (mon.a, mgr.x, osd.0), if it runs: a number that was recorded and is not another's by now.
process_of() {
    number=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
    [ -n "$number" ] || return 1
    grep -qzF -- "$dir/ceph.conf" "/proc/$number/cmdline" 2>/dev/null || return 1
    # A zombie keeps its number, without a command line; it has been told apart above.
    echo "$number"
}

signal() { # SIGNAL NAME
    if number=$(process_of "$2"); then kill "-$1" "$number" 2>/dev/null || true; fi
}

wait_gone() { # NAME SECONDS
    tries=$(($2 * 20))
    while process_of "$1" >/dev/null; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}

# Below the range from which outgoing connections take theirs.
free_port() {
    "$(python)" -c '
import random, socket, sys
for port in random.sample(range(20000, 32000), 200):
    with socket.socket() as probe:
        try: probe.bind(("127.0.0.1", port))
        except OSError: continue
    print(port); sys.exit()
sys.exit("no free port between 20000 and 32000")'
}

write_conf() { # FSID PORT
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $1
mon initial members = a
mon host = v2:127.0.0.1:$2/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = $dir/\$name.keyring
run dir = $dir
pid file = $dir/\$name.pid
admin socket =
crash dir = $dir/crash
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
osd pool default size = 3
osd pool default min size = 2
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
ms bind port min = 6800
ms bind port max = 9000
[mon]
mon data = $dir/mon.a
log file = $dir/\$name.log
mon cluster log file = $dir/cluster.log
mon allow pool delete = true
mon allow pool size one = true
mon warn on pool no redundancy = false
mon warn on no sortbitwise = false
mon pg warn min per osd = 0
mon max pg per osd = 1000
mon data avail warn = 1
mon data avail crit = 0
mon osd down out interval = 86400
mon osd reporter subtree level = osd
paxos propose interval = 0.05
[mgr]
mgr data = $dir/mgr.x
log file = $dir/\$name.log
mgr tick period = 1
mgr stats period = 1
[osd]
osd data = $dir/osd.\$id
log file = $dir/\$name.log
osd objectstore = bluestore
osd memory target = 1073741824
bluestore block size = $osd_size
bluestore avl alloc bf free pct = 100
bluestore avl alloc ff max search bytes = 0
bluestore debug enforce settings = ssd
osd op num shards = 2
osd op num threads per shard = 2
osd fast fail on connection refused = true
osd client watch timeout = 30
debug osd = 0/0
debug ms = 0/0
debug bdev = 0/0
debug bluestore = 0/0
debug bluefs = 0/0
debug rocksdb = 0/0
debug monc = 0/0
debug auth = 0/0
CONF
}

# Keys of everybody, with what they may do: the monitor takes them all from here when it is made.
write_keys() {
    all=$dir/all.keyring
    rm -f "$all"
    ceph-authtool --create-keyring "$all" --gen-key -n mon. --cap mon 'allow *'
    key_of client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *' --cap mgr 'allow *'
    key_of mgr.x --cap mon 'allow profile mgr' --cap osd 'allow *' --cap mds 'allow *'
    for n in $osds; do key_of "osd.$n" --cap mon 'allow profile osd' --cap mgr 'allow profile osd' --cap osd 'allow *'; done
    ceph-authtool "$dir/mon.a.keyring" --create-keyring --import-keyring "$all"
}

key_of() { # ENTITY CAPS...
    entity=$1
    ceph-authtool --create-keyring "$dir/$entity.keyring" --gen-key -n "$@"
    ceph-authtool "$all" --import-keyring "$dir/$entity.keyring"
    [ -s "$dir/$entity.keyring" ] || fail "no key for $entity"
}

create() {
    free=$(($(stat -f -c '%a * %S' "$dir")))
    [ "$free" -ge "$least_free" ] || fail "$dir: $((free >> 20)) MiB are free there;" \
        "expected at least $((least_free >> 20)) MiB; make room or choose another folder"
    mkdir -p "$dir/mon.a" "$dir/mgr.x" "$dir/crash"
    fsid=$(cat /proc/sys/kernel/random/uuid)
    port=$(free_port)
    write_conf "$fsid" "$port"
    write_keys >"$dir/make.log"
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$dir/monmap" >>"$dir/make.log"
    making=""
    for n in $osds; do
        mkdir -p "$dir/osd.$n"
        cat /proc/sys/kernel/random/uuid >"$dir/osd.$n/uuid"
        ceph-osd -i "$n" --conf "$dir/ceph.conf" --mkfs --monmap "$dir/monmap" \
            --osd-uuid "$(cat "$dir/osd.$n/uuid")" >>"$dir/make.log" 2>&1 9>&- &
        making="$making $!"
        echo $! >"$dir/mkfs.$n.pid"
    done
    ceph-mon -i a --conf "$dir/ceph.conf" --mkfs --monmap "$dir/monmap" --keyring "$dir/mon.a.keyring" \
        >>"$dir/make.log" 2>&1 || fail "no monitor could be made; see $dir/make.log"
    start_daemon mon.a
    {
        for n in $osds; do echo "osd new $(cat "$dir/osd.$n/uuid") $n"; done
        echo "config set mgr mgr/devicehealth/enable_monitoring false"
        echo "osd set noscrub"
        echo "osd set nodeep-scrub"
        echo "health mute OSDMAP_FLAGS --sticky"
    } | tell
    for job in $making; do wait "$job" || fail "no OSD could be made; see $dir/make.log"; done
    rm -f "$all" "$dir"/mkfs.*.pid
    : >"$dir/created"
}

# Commands from standard input, one on a line: one start of ceph for all, which is slow to start.
tell() { ceph_ >>"$dir/make.log" 2>&1 || fail "the monitor refused a command; see $dir/make.log"; }

start_daemon() { # NAME
    process_of "$1" >/dev/null && return 0
    rm -f "$dir/$1.pid"
    : >"$dir/$1.starting"
    # Lock and terminal are not for daemons to hold.
    "ceph-${1%%.*}" -i "${1#*.}" --conf "$dir/ceph.conf" </dev/null >>"$dir/$1.out" 2>&1 9>&- ||
        fail "$1 does not start: $(tail -n 3 "$dir/$1.out"); see $dir/$1.log"
    # The daemon puts itself into the background, and writes its number soon after.
    wait_recorded "$1" || fail "$1 ended right after its start; see $dir/$1.log"
    rm -f "$dir/$1.starting"
}

wait_recorded() { # NAME
    tries=100
    until process_of "$1" >/dev/null; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}

create_pools() { # [ec]
    existing=$(ceph_ osd pool ls)
    has() { echo "$existing" | grep -qx -- "$1"; }
    {
        has $pool || {
            echo "osd pool create $pool 32 32 replicated --size 3"
            echo "osd pool application enable $pool rbd"
        }
        [ "${1:-}" != ec ] || has $ec_pool || {
            echo "osd erasure-code-profile set $ec_pool k=2 m=1 crush-failure-domain=osd --force"
            echo "osd pool create $ec_pool 16 16 erasure $ec_pool"
            echo "osd pool set $ec_pool allow_ec_overwrites true"
            echo "osd pool application enable $ec_pool rbd"
        }
    } >"$dir/pools"
    [ ! -s "$dir/pools" ] || tell <"$dir/pools"
}

# Waits until every placement group of every pool is active and clean, and the manager knows it.
wait_clean() {
    "$(python)" - "$dir/ceph.conf" "$patience" <<'WAIT'
import json, sys, time, rados
end = time.monotonic() + float(sys.argv[2])
said = "nothing"
with rados.Rados(conffile=sys.argv[1]) as cluster:
    while time.monotonic() < end:
        _, out, _ = cluster.mon_command(json.dumps({"prefix": "status", "format": "json"}), b"")
        status = json.loads(out)
        osds, groups = status["osdmap"], status["pgmap"]
        clean = sum(s["count"] for s in groups.get("pgs_by_state", []) if s["state_name"].startswith("active+clean"))
        _, out, _ = cluster.mon_command(json.dumps({"prefix": "osd dump", "format": "json"}), b"")
        wanted = sum(p["pg_num"] for p in json.loads(out)["pools"])
        said = "%d of %d OSDs up, %d of %d placement groups active and clean" % (osds["num_up_osds"], osds["num_osds"], clean, wanted)
        if clean == wanted and osds["num_up_osds"] == osds["num_osds"]:
            sys.exit()
        time.sleep(0.2)
sys.exit("ceph-cluster: not healthy in time: " + said)
WAIT
}

start() { # [ec]
    need_ceph
    mkdir -p "$dir"
    [ -e "$dir/lock" ] || [ -z "$(ls -A "$dir")" ] || fail "$dir: holds something else; expected a new or empty folder"
    exec 9>"$dir/lock"
    flock 9
    if [ ! -e "$dir/created" ]; then
        stop_all KILL
        remove_parts
        create
    fi
    start_daemon mon.a
    starting=""
    for name in mgr.x $(printf 'osd.%s ' $osds); do
        start_daemon "$name" &
        starting="$starting $!"
    done
    for job in $starting; do wait "$job" || exit 1; done
    create_pools "${1:-}"
    wait_clean || fail "see $dir/*.log"
    exec 9>&-
}

names() { echo "$(printf 'mkfs.%s ' $osds) mgr.x $(printf 'osd.%s ' $osds) mon.a"; }

stop_all() { # SIGNAL
    for name in $(names); do
        # A start that was interrupted leaves a daemon which has not recorded its number yet.
        [ ! -e "$dir/$name.starting" ] || wait_recorded "$name" || true
        signal "$1" "$name"
    done
    for name in $(names); do
        wait_gone "$name" 15 || {
            signal KILL "$name"
            wait_gone "$name" 15 || fail "$name does not end"
        }
        rm -f "$dir/$name.pid" "$dir/$name.starting"
    done
}

# Only what this script has put there: the folder may have been the wrong one.
remove_parts() {
    rm -rf "$dir/mon.a" "$dir/mgr.x" "$dir/crash"
    for n in $osds; do rm -rf "$dir/osd.$n"; done
    rm -f "$dir"/*.keyring "$dir"/*.starting "$dir"/*.log "$dir"/*.out "$dir"/*.pid "$dir"/*.asok
    rm -f "$dir/ceph.conf" "$dir/monmap" "$dir/pools" "$dir/created"
}

destroy() {
    [ -e "$dir/lock" ] || return 0
    stop_all KILL
    remove_parts
    rm -f "$dir/lock"
    rmdir "$dir" 2>/dev/null || echo "ceph-cluster: $dir holds other files and stays" >&2
}

one_osd() {
    case " $osds " in
    *" ${1:-none} "*) ;;
    *) fail "which OSD? Expected one of: $osds" ;;
    esac
}

start_osd() {
    start_daemon "osd.$1"
    tries=$patience
    until ceph_ osd dump | grep -q "^osd\.$1 up"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "osd.$1 runs, but the monitor does not count it as up; see $dir/osd.$1.log"
        sleep 0.3
    done
}

run() { # [ec] -- COMMAND...
    kind=""
    if [ "${1:-}" = ec ]; then
        kind=ec
        shift
    fi
    [ "${1:-}" = -- ] && shift
    [ $# -gt 0 ] || fail "run what? Expected: run [ec] -- COMMAND..."
    if [ -n "${LACUNA_CEPH_CONF:-}" ]; then
        echo "ceph-cluster: taking the cluster of $LACUNA_CEPH_CONF"
        exec "$@"
    fi
    if ! have_ceph && [ "$(id -u)" = 0 ]; then "$here/ensure-packages.sh" || true; fi
    if ! have_ceph; then
        echo "ceph-cluster: skipped: the tests on Ceph (its daemons are not installed)" >&2
        exec "$@"
    fi
    set_dir "$(mktemp -d "${TMPDIR:-/tmp}/lacuna-ceph.XXXXXX")"
    : >"$dir/lock"
    trap destroy EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # Should this shell be killed outright, nobody else would end the daemons.
    setsid "$0" watch $$ "$dir" </dev/null >/dev/null 2>&1 &
    (start "$kind") || fail "no cluster, so nothing was run"
    LACUNA_CEPH_CONF=$dir/ceph.conf
    LACUNA_CEPH_DIR=$dir
    export LACUNA_CEPH_CONF LACUNA_CEPH_DIR
    code=0
    "$@" || code=$?
    exit "$code"
}

watch() { # PROCESS
    while kill -0 "$1" 2>/dev/null; do sleep 2; done
    destroy
}

verb=${1:-}
[ $# = 0 ] || shift
case "$verb" in
start)
    set_dir "${1:-}"
    case "${2:-}" in "" | ec) start "${2:-}" ;; *) fail "unknown kind of pool: $2; expected: ec" ;; esac
    ;;
stop | destroy)
    set_dir "${1:-}"
    if [ "$verb" = stop ]; then stop_all TERM; else destroy; fi
    ;;
kill-osd | start-osd)
    set_dir "${1:-}"
    need_cluster
    one_osd "${2:-}"
    if [ "$verb" = start-osd ]; then start_osd "$2"; else
        signal KILL "osd.$2"
        wait_gone "osd.$2" 15 || fail "osd.$2 does not end"
    fi
    ;;
status)
    set_dir "${1:-}"
    need_cluster
    process_of mon.a >/dev/null || fail "$dir: it does not run; start it with: $0 start $dir"
    ceph_ -s
    ;;
run) run "$@" ;;
watch)
    process=$1
    set_dir "$2"
    watch "$process"
    ;;
*) fail "unknown verb '$verb'; expected start, stop, destroy, kill-osd, start-osd, status or run; see the first lines of $0" ;;
esac
