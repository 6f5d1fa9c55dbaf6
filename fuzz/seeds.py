#!/usr/bin/env python3
"""Writes the seeds from which fuzzing starts into fuzz/seeds. The files are not checked in: scripts/fuzz.sh runs this
before the targets."""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "seeds"


def put(target, name, data):
    folder = HERE / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(bytes(data))


def header():
    put("header", "untouched", [1, 0])
    put("header", "raw-magic", b"\0LACUNA\0\1" + struct.pack("<II", 1, 16384))
    # flags (bits 0 to 2: the digest of copies A to C stays wrong, bit 3: cut short), then the place, length - 1, bytes.
    # Of the place, bits 14 and 15 are the copy; with bit 13 the others are an offset, without it an offset modulo 160.
    place = lambda copy, offset: (copy << 14) + (offset if offset >= 8192 else (offset - (copy << 14)) % 160)
    def change(copies, offset, data):
        return b"".join(struct.pack("<HB", place(copy, offset), len(data) - 1) + bytes(data) for copy in copies)
    for name, offset, data in [
        ("version", 8, [2]), ("length", 12, [1]), ("generation", 16, [9]), ("generation-max", 16, [255] * 8),
        ("foreign", 32, [0]), ("memory", 80, [255] * 4), ("passes", 84, [0] * 4), ("lanes", 88, [16]),
        ("salt", 92, [1] * 32), ("params-len", 124, [1, 4]), ("slot", 8192, [7] * 64), ("slot-map", 10240, [7] * 36),
        ("mac", 16352, [0] * 32),
    ]:
        put("header", name + "-a", b"\1\0" + change([0], offset, data))
        put("header", name + "-all", b"\1\0" + change([0, 1, 2], offset, data))
        put("header", name + "-b-undigested", b"\1\2" + change([1], offset, data))
    put("header", "cut-short", b"\1\x08" + change([0] * 16, 0, b"L") + struct.pack("<I", 530000))
    # how many reads lie, then for each its number and the moment that it tells of; damage follows
    for moment in range(3):
        for reads in ([0], [1], [2], [0, 1, 2]):
            told = b"".join(struct.pack("<HB", read, moment) for read in reads)
            put("header", f"lies-{moment}-{len(reads)}-{reads[0]}", bytes([9, len(reads)]) + told + b"\0")
            put("header", f"lies-damaged-{moment}-{len(reads)}-{reads[0]}", bytes([9, len(reads)]) + told + b"\0" + change([1], 16, [9]))


def params():
    for cipher in range(4):
        put("sealed_params", str(cipher), struct.pack("<HBxIQQI12x", 1, cipher, 2, 5000, 8 << 20, 1 << 18))


def ring():
    def batch(entries, blocks):
        head_len = -(-(64 + 48 * len(entries)) // 4096) * 4096
        head = b"LACRING1" + struct.pack("<Q16sIII4x16s", 1, b"salt", len(entries), head_len,
                                         head_len + 4096 * blocks, b"tag")
        return head + b"".join(entries)
    entry = lambda kind, count, addr, meta=b"": struct.pack("<B3xIQ32s", kind, count, addr, meta)
    put("sealed_journal", "empty", batch([], 0))
    put("sealed_journal", "erase", batch([entry(2, 7, 3)], 0))
    put("sealed_journal", "move", batch([entry(3, 0, 1, struct.pack("<Q", 2)), entry(3, 0, 0)], 0))
    put("sealed_journal", "write", batch([entry(1, 0, 5, b"m" * 32)], 1))


def medium():
    for selector in range(32):
        put("sealed_medium", f"untouched-{selector}", [selector, 1])
        # how many reads lie, then for each its number and the past that it tells of
        told = b"".join(struct.pack("<HB", 7 * n + selector, n) for n in range(20))
        put("sealed_medium", f"lies-{selector}", bytes([selector, 0x81, 20]) + told)
        for place in range(8):
            # a flipped bit, zeros, a page of the past, a copy from elsewhere
            changes = [
                [place, 0, 40, 0, 0, 0, 4],
                [place, 3, 16, 16, 0, 0, 0, 16],
                [place, 4, 0, 0, 0, 0, selector, 3],
                [place, 5, 0, 32, 0, 0, 7, 0, 96, 0, 0, 4],
            ]
            change = changes[(selector + place) % 4]
            put("sealed_medium", f"change-{selector}-{place}", [selector, 2 * place] + change)


def book():
    tag = bytes(32)
    record = lambda number, state, name: struct.pack("<IBB2xQQQQ24x64s", number, state, len(name), 1 << 30, 5000, 7, 8, name)
    table = lambda newest, *records: struct.pack("<8sIIQ8x", b"LACSNAP1", newest, len(records), 1) + tag + b"".join(records)
    put("sealed_book", "empty", table(0))
    put("sealed_book", "one", table(1, record(1, 0, b"a")))
    put("sealed_book", "two", table(9, record(2, 2, b"a.b"), record(9, 1, b"n" * 64)))
    put("sealed_book", "page", struct.pack("<8sQIIQ", b"LACVERS1", 1, 2, 1, 3) + tag + struct.pack("<Q", 77))


def objects():
    for selector in range(20):
        put("sealed_objects", f"untouched-{selector}", [selector, 0])
        put("sealed_objects", f"lies-{selector}", [selector, 0x83, selector, 1, 0, 0])
        put("sealed_objects", f"rollback-{selector}", [selector, 3])
        for operation in range(8):
            for place in (0, 4, 1, 5):
                rest = [4 * selector, 1, 0, 0, 2, 3, 4]
                put("sealed_objects", f"change-{selector}-{operation}-{place}", [selector, 2, operation, place] + rest)


def nbd():
    put("nbd_negotiation", "go", [3, 7, 2, 0, 0])
    put("nbd_negotiation", "info-name", [3, 6, 6, 1, 48, 2, 0, 3, 0, 0, 7, 2, 0, 0])
    put("nbd_negotiation", "list-abort", [3, 3, 0, 2, 0])
    put("nbd_negotiation", "structured-meta-go", [3, 8, 0, 10, 3, 0, 1, 0x80, 7, 2, 0, 0])
    put("nbd_negotiation", "list-meta", [3, 8, 0, 9, 8, 0, 2, 5, 98, 97, 115, 101, 58, 7, 2, 0, 0])
    put("nbd_negotiation", "export-name", [1, 0x41, 1, 48])
    put("nbd_negotiation", "tls", [3, 5, 0])
    # Bits 4 and 5 of the option's first byte say how its number is made.
    put("nbd_negotiation", "unknown-16", [3, 0x10, 0, 7, 2, 0, 0])
    put("nbd_negotiation", "unknown-max", [3, 0x20, 255, 255, 255, 255, 0, 7, 2, 0, 0])
    put("nbd_negotiation", "untrue-length", [3, 0x87, 2, 0, 0, 255, 255, 255, 255])
    raw = b"\x80\0\0\0\3IHAVEOPT\0\0\0\7\0\0\0\6\0\0\0\0\0\0"
    put("nbd_negotiation", "raw-go", raw)
    put("nbd_negotiation", "raw-short", raw[:-3])
    for structured in (0, 1):
        for command in range(10):
            one = [5, command, 0, 3, 0, 2]  # aligned, two blocks
            put("nbd_transmission", f"one-{structured}-{command}", [structured] + one)
            put("nbd_transmission", f"flags-{structured}-{command}", [structured, 5, command, 31, 3, 0, 2])
            put("nbd_transmission", f"odd-{structured}-{command}", [structured, 8, command, 0, 5, 3, 77])
            put("nbd_transmission", f"beyond-{structured}-{command}",
                [structured, 15, command, 0] + [255] * 8 + [255] * 4)
    put("nbd_transmission", "mixed", [1, 5, 1, 1, 0, 0, 4, 8, 6, 0, 1, 0, 200, 5, 7, 0, 0, 0, 9, 5, 0, 0, 0, 0, 9,
                                      5, 4, 0, 1, 0, 2, 5, 3, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0])
    put("nbd_transmission", "left-in-write", [1, 0x85, 1, 0, 0, 0, 8])
    put("nbd_transmission", "raw", b"\xf1\x25\x60\x95\x13" + bytes(24))



def deniable():
    # Of each stripe: previous 16, synced 8, root record 32, entry 24, echo 8; the rest is not looked at.
    def stripe(entry, covered=0, synced=0, root=0):
        part = bytes(16) + struct.pack("<QQQQQ", synced, root, covered, 1, 0) + struct.pack("<Q16xQ", entry, entry)
        return part.ljust(128, b"\0")
    data, page, trim, lost = 1 << 56, 2 << 56, 3 << 56, 4 << 56
    put("deniable_open", "data", b"".join(stripe(data | n) for n in range(6)))
    put("deniable_open", "pages", b"".join(stripe(page, root=n << 8) for n in range(1, 6)))
    put("deniable_open", "trims", b"".join(stripe(trim | n, covered=n) for n in range(1, 6)))
    put("deniable_open", "lost", b"".join(stripe(lost | n, synced=n) for n in range(6)))
    put("deniable_open", "hole", stripe(data) + b"\xff" * 128 + stripe(data | 1, synced=2))
    # The last five bytes of the first stripe ask for lies.
    for seed in range(6):
        stripes = b"".join(stripe(data | n, synced=n) for n in range(12))
        put("deniable_open", f"lies-{seed}", stripes[:123] + bytes([0x80, seed, 0, seed % 2, 0]) + stripes[128:])


def oblivious():
    # Of each batch: flags, its number, synced, applied; root, covered, data, pages; one discard; cell and entry three times.
    data, page = 1 << 56, 2 << 56
    place = lambda seq, cell: seq << 40 | cell + 1
    def batch(flags=0, number=0, synced=0, applied=0, state=(0, 0, 0, 0), discard=(0, 0), cells=()):
        cells = [word for pair in cells for word in pair]
        words = [flags, number, synced, applied, *state, *discard, *cells]
        return struct.pack("<16Q", *words, *[0] * (16 - len(words)))
    empty = [batch(synced=max(0, seq - 1), applied=max(0, seq - 2)) for seq in range(8)]
    put("oblivious_open", "empty", b"".join(empty))
    put("oblivious_open", "data", b"".join(batch(cells=[(seq, data | seq), (9, data | 1)]) for seq in range(8)))
    root = (place(1, 1), 0, 9, 1)
    put("oblivious_open", "page", batch(state=root, cells=[(1, page), (2, data)]) + batch(synced=1, state=root))
    put("oblivious_open", "discard", batch(cells=[(1, data)]) + batch(discard=(0, 300), cells=[(2, data)]))
    put("oblivious_open", "stash", batch() + batch(flags=16, cells=[(3, data | 2)]))
    put("oblivious_open", "stash-nowhere", batch(flags=24, cells=[(3, data | 1 << 30), (4, 0), (5, 0)]))
    put("oblivious_open", "level-1", batch(flags=8, cells=[(1, data)]) + batch(flags=24, cells=[(1, page), (2, data)]))
    put("oblivious_open", "number", batch(flags=2, number=(1 << 48) - 1) + batch(flags=2, number=33))
    put("oblivious_open", "applied", batch() + batch() + batch(synced=2, applied=1) + batch(synced=1))
    # Bytes 1 to 5 of the first batch ask for lies.
    for seed in range(6):
        batches = b"".join(batch(synced=max(0, seq - 1), cells=[(seq, data | seq)]) for seq in range(8))
        put("oblivious_open", f"lies-{seed}", batches[:1] + bytes([0x80, seed, 0, seed % 2, 0]) + batches[6:])
    hiding_and_on = struct.pack("<HBBBB2xIIIIQQ24x", 1, 2, 3, 32, 4, 1000, 60, 2048, 512, 400000, 99000)
    put("oblivious_open", "params", hiding_and_on)


def flash():
    # Of each change: what, erase block, offset, which past, value, length; before them the image and what is left out.
    for image in range(4):
        put("flash_open", f"untouched-{image}", [image])
        put("flash_open", f"lies-{image}", bytes([image + 32]) + bytes(5 * n % 23 for n in range(32)))
        for what in range(6):
            for leb in range(0, 48, 5):
                change = struct.pack("<BBHBBBB", what, leb, (leb * 331) % 4096, leb % 3, leb + 1, 200, 0)
                put("flash_open", f"{image}-{what}-{leb}", bytes([image + 4 * (leb % 2) * 16]) + change)
    # The header of a group, as it is encrypted: version, kind, count, next, sequence, checksum, zeros, entries.
    front = lambda kind, count: struct.pack("<BBHIQI4x", 1, kind, count, 3, 99, 7)
    put("flash_group", "nodes", front(1, 2) + struct.pack("<IIQQ16s", 5, 6, 640, 0, b"tag") * 2)
    put("flash_group", "index", front(1, 1) + struct.pack("<IIQQ16s", 1 << 31, 6, 640, 1 << 34, b"tag"))
    put("flash_group", "discard", front(2, 1) + struct.pack("<I4xQ", 5, 1 << 34 | 9))
    put("flash_group", "renewed", front(4, 3) + struct.pack("<I12x", 1) * 3)
    put("flash_group", "start", front(3, 1) + struct.pack("<Q8x", 4))
    put("flash_group", "finish", front(5, 1) + struct.pack("<Q8x", 4))
    # How many changes of a checkpoint, then groups: flags, filler, count, key, four entries of 7 bytes.
    put("flash_checkpoint", "untouched", [0])
    for kind in range(8):
        group = bytes([kind, 1, 3, 0]) + struct.pack("<HBI", 5, 1, 300 << 16 | 200) * 4
        put("flash_checkpoint", f"group-{kind}", bytes([0]) + group)
        put("flash_checkpoint", f"groups-{kind}", bytes([1, kind * 4, 0, 1]) + group * 6)
    for offset in list(range(0, 64, 4)) + [100, 300, 500, 900]:
        put("flash_checkpoint", f"front-{offset}", struct.pack("<BHB", 1, offset, 255))
    put("flash_state_map", "all", [2, 9, 0, 0, 1, 0, 0, 1])
    put("flash_state_map", "some", [2, 9, 2, 1, 2, 2, 2, 1, 2, 255, 1, 0])


def nand():
    # Of each erase block: flags, leb, pages, filler, lebs, erasures, sequence, state.
    block = lambda flags, leb, pages=2, sequence=1: struct.pack("<BBBBIQQ16x", flags, leb, pages, leb + 1, 0, 5 << 12, sequence << 14)
    put("nand_scan", "free", b"".join(block(4, 0) for _ in range(16)))
    put("nand_scan", "mapped", b"".join(block(16, leb) for leb in range(8)) + block(4, 0) * 8)
    put("nand_scan", "replaced", b"".join(block(16, leb % 4, leb % 4, leb) for leb in range(8)) + block(4, 0) * 8)
    for flags in range(8):
        put("nand_scan", f"flags-{flags}", b"".join(block(1 << flags, leb % 5, 3, leb) for leb in range(12)) + block(4, 0) * 4)
    # The lowest byte of the erasures asks for lies, that of the sequence number says which.
    for seed in range(6):
        blocks = b"".join(block(16, leb, 3, leb) for leb in range(8)) + block(4, 0) * 8
        put("nand_scan", f"lies-{seed}", blocks[:8] + b"\x80" + blocks[9:16] + bytes([seed]) + blocks[17:])
    head = b"lacnand\0" + struct.pack("<7I", 1, 512, 6, 16, 0, 0, 0)
    put("nand_scan", "head", head)


def vault():
    change = lambda *fields: struct.pack("<BBBHB", *fields)
    # Both targets begin with five bytes: whether to lie, and how.
    lies = lambda seed: bytes([0x80, seed, 0, seed % 2, 0])
    for kind in range(6):
        changes = b"".join(change(kind, name, name + 1, name * 3, 7) for name in range(6))
        put("vault_open", f"kind-{kind}", bytes(5) + changes)
        put("vault_open", f"lies-{kind}", lies(kind) + changes)
    for seed in range(12):
        put("vault_open", f"lies-only-{seed}", lies(seed))
    facts = bytes(16) + struct.pack("<QQQII", 5, 20, 1044, 0, 0)
    commit = struct.pack("<Q", 7) + bytes(64)
    put("vault_commits", "super", commit + struct.pack("<I", 1) + facts + struct.pack("<II", 1, 4) + b"root")
    page = struct.pack("<QQIQ", 3, 1, 9, 2) + bytes(16)
    lists = struct.pack("<IQQ", 1, 3, 0) + struct.pack("<IQ", 1, 4) + struct.pack("<I", 1) + page
    put("vault_commits", "record", facts + lists + struct.pack("<II", 0, 0) + struct.pack("<I", 4) + b"puts")
    put("vault_commits", "checkpoint", facts + struct.pack("<III", 0, 0, 0) + struct.pack("<II", 1, 4) + b"root" + bytes(4))
    # Facts: next number, machine, time, what may be given, machines, appendable. Then as `make` and `make_record` take them.
    facts = [40, 1, 9, 100, 0, 0]
    record = lambda cuts=(), removals=(), root=0, pages=(): (
        [1] + facts + [len(cuts)] + [n for cut in cuts for n in cut] + [len(removals), *removals, root]
        + [len(pages)] + [n for page in pages for n in page] + [1] * len(pages) + ([] if root == 3 else [1]) + [1])
    start = facts + [0, 5, 0]
    journals = {
        "pages": record(pages=[(1, 0), (1, 1), (2, 9)]) + record(cuts=[(1, 1)], pages=[(1, 3)]),
        "removed": record(pages=[(1, 0), (2, 0)]) + record(removals=[1, 2]),
        "checkpoint": record(pages=[(1, 0)]) + record(cuts=[(1, 0)], root=3) + record(pages=[(1, 2)]),
        "two-checkpoints": record(root=3) + record(pages=[(3, 1)]) + record(root=3),
        "alike": record(pages=[(1, 0)]) * 6,
    }
    for name, records in journals.items():
        put("vault_journal", name, bytes(5) + bytes(start + records))
        for seed in range(3):
            put("vault_journal", f"{name}-lies-{seed}", lies(seed) + bytes(start + records))
    put("vault_namespace", "inode", bytes([1, 1]) + bytes(100) + struct.pack("<H", 3) + b"TS.")
    put("vault_namespace", "symlink", bytes([1, 3]) + bytes(102) + b"../target")
    put("vault_namespace", "bucket", b"".join(struct.pack("<BBQB", slot, 1, 9, 4) + b"name" for slot in range(3)))
    put("vault_namespace", "acl", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 6, 0) for tag in (1, 2, 4, 16, 32)))
    put("vault_namespace", "puts", b"\1" + struct.pack("<H", 3) + b"\0ab" + struct.pack("<I", 2) + b"cd" + struct.pack("<H", 2) + b"\0x" + b"\xff" * 4)


def integrity():
    # One session, one interval; the root or the leaves of a tree.
    intervals = bytes([1]) + struct.pack("<Q", 5) + bytes([1, 1, 1, 0])
    for scheme, blocks, flags in [(0, 3, 2), (0, 700, 0), (0, 700, 1), (1, 700, 0), (2, 5, 2), (2, 900, 0), (1, 90, 1)]:
        head = struct.pack("<BBBBQQIHHH2x", 1, scheme, scheme, 7, blocks, 5, 1, 0, 0, 0)
        leaves = blocks if scheme == 0 else 4
        section = bytes([flags])
        if scheme == 0:
            section += struct.pack("<I", 6) if flags & 1 else b""
            section += bytes([len(intervals)]) + intervals
        else:
            section += struct.pack("<QII", leaves, 1, 3)
            section += struct.pack("<I", 200) + bytes(32) if flags & 1 else bytes([len(intervals)]) + intervals
        section += bytes(16 * leaves) if flags & 2 else bytes(16)
        ts = head + section
        put("integrity_hostile", f"scheme-{scheme}-{blocks}-{flags}", bytes([len(ts)]) + ts + bytes(range(256)) * 2)


header()
params()
ring()
medium()
book()
objects()
deniable()
oblivious()
flash()
nand()
nbd()
vault()
integrity()
