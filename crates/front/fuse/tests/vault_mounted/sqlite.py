# Databases in the directory argv[2]: `write` changes them from several processes at once, in both journal modes; `check` tells
# whether they are sound, and what they hold. `commit` adds rows to another one in the journal mode argv[3], telling of each when
# it is durable, until something fails; `kept` tells how many there are.
import os
import sqlite3
import sys

MODES = ["wal", "delete"]
ROWS = 400


def path(mode):
    return os.path.join(sys.argv[2], mode + ".db")


def connect(mode):
    base = sqlite3.connect(path(mode), timeout=60, isolation_level=None)
    got = base.execute("pragma journal_mode=" + mode).fetchone()[0]
    assert got == mode, got
    base.execute("pragma synchronous=" + ("normal" if mode == "wal" else "full"))
    base.execute("pragma mmap_size=%d" % (1 << 26))
    return base


def writer(mode, who):
    base = connect(mode)
    for n in range(ROWS):
        base.execute("begin immediate")
        base.execute("insert into t(who, n, text) values (?, ?, ?)", (who, n, "text %d " % n * (n % 90)))
        base.execute("update sums set rows = rows + 1")
        if n % 10 == 3:
            base.execute("delete from t where who = ? and n = ?", (who, n - 1))
            base.execute("update sums set rows = rows - 1")
        base.execute("rollback" if n % 17 == 5 else "commit")
    base.close()


def killed(mode):
    base = connect(mode)
    base.execute("begin immediate")
    for n in range(3000):
        base.execute("insert into t(who, n, text) values (99, ?, ?)", (n, "never " * 200))
    os._exit(0)


def children(mode, *works):
    pids = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            try:
                work()
                os._exit(0)
            except BaseException as e:
                print(e, file=sys.stderr)
                os._exit(1)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0, mode


def write():
    for mode in MODES:
        base = connect(mode)
        base.execute("create table if not exists t(id integer primary key, who int, n int, text)")
        base.execute("create index if not exists i on t(who, n)")
        base.execute("create table if not exists sums(rows int)")
        if not base.execute("select * from sums").fetchall():
            base.execute("insert into sums values (0)")
        base.close()
        children(mode, lambda: writer(mode, 1), lambda: writer(mode, 2))
        children(mode, lambda: killed(mode))
        children(mode, lambda: writer(mode, 3))
        base = connect(mode)
        base.execute("delete from t where who = 3")
        base.execute("update sums set rows = (select count(*) from t)")
        base.execute("vacuum")
        base.close()


def check():
    for mode in MODES:
        base = connect(mode)
        assert base.execute("pragma integrity_check").fetchall() == [("ok",)], mode
        rows, total, n = base.execute("select count(*), sum(length(text)), sum(n) from t").fetchone()
        assert rows == base.execute("select rows from sums").fetchone()[0]
        assert base.execute("select count(*) from t where who = 99").fetchone()[0] == 0
        print(mode, rows, "rows", total, "characters", n)
        base.close()


def durable(mode):
    base = sqlite3.connect(os.path.join(sys.argv[2], mode + ".durable"), timeout=60, isolation_level=None)
    assert base.execute("pragma journal_mode=" + mode).fetchone()[0] == mode
    base.execute("pragma synchronous=%s" % ("full" if mode == "wal" else "extra"))
    return base


def commit():
    base = durable(sys.argv[3])
    base.execute("create table rows(n integer primary key, text)")
    n = 0
    while True:
        n += 1
        base.execute("insert into rows values (?, ?)", (n, "text %d " % n * (n % 400)))
        print(n, flush=True)


def kept():
    base = durable(sys.argv[3])
    assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
    for n, text in base.execute("select n, text from rows"):
        assert text == "text %d " % n * (n % 400), n
    rows, last = base.execute("select count(*), max(n) from rows").fetchone()
    assert rows == last, (rows, last)
    print(rows)


{"write": write, "check": check, "commit": commit, "kept": kept}[sys.argv[1]]()
