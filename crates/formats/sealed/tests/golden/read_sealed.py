"""Reads a sealed disk, from docs/format/header.md and docs/format/sealed.md alone: read_sealed.py SPARSE PASSPHRASE.

Prints the number and a digest of every block that is not zeros. Knows the ciphers xts, xts-random and gcm (no
library of Python has HCTR2), and repeats what the ring holds. A second opinion on the Rust code, never a tool.
"""
import hmac
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB, XTS
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MIB = 1 << 20
ZEROS = bytes(4096)


def load(path):
    """The golden files: magic, length, then runs of bytes that are not zeros."""
    sparse = open(path, "rb").read()
    magic, length = struct.unpack_from("<8sQ", sparse)
    assert magic == b"LACSPAR1"
    image, at = bytearray(length), 16
    while at < len(sparse):
        offset, size = struct.unpack_from("<QI", sparse, at)
        image[offset : offset + size] = sparse[at + 12 : at + 12 + size]
        at += 12 + size
    return bytes(image)


def derive(key, label, context, length=32):
    info = b"lacuna v1 " + label + b"\0" + context
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


def number(n, length=8):
    return n.to_bytes(length, "little")


def unlock(header, passphrase):
    """The uuid, the parameters and the master key of level 0 (header.md)."""
    form, uuid = struct.unpack_from("<H", header, 24)[0], header[64:80]
    memory, passes, lanes, salt, params_len = struct.unpack_from("<III32sH", header, 80)
    assert (header[:8], form) == (b"LACUNA\x00\x01", 1)
    kdf = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory)
    stretched = kdf.derive(passphrase)
    for position in range(8):
        slot = header[2048 + 1024 * position :][:1024]
        key = derive(stretched, b"key slot", bytes([position]) + uuid)
        try:
            payload = AESGCM(key).decrypt(slot[:12], slot[12:285], header[:12] + uuid + bytes([position]))
            return uuid, header[126 : 126 + params_len], payload[1:33]
        except InvalidTag:
            pass
    raise SystemExit("no slot opens")


class Disk:
    def __init__(self, image, passphrase):
        self.image = image
        self.uuid, params, self.master = unlock(image[:16384], passphrase)
        version, self.cipher, spare, self.blocks, self.ring_len, capacity = struct.unpack_from("<HBxIQQI", params)
        assert (len(params), version) == (40, 1) and not any(params[3:4] + params[28:])
        self.m = {0: 0, 1: 16, 2: 32}[self.cipher]
        self.map = MIB + self.ring_len
        end_of_map = self.map + -(-16 * capacity // 4096) * 4096
        self.homes = -(-end_of_map // MIB) * MIB
        self.group_meta = -(-8 * 1024 * self.m // 262144) * 262144
        self.segments = -(-self.blocks // 1024)
        slots = self.segments + spare
        assert len(image) >= self.homes + -(-slots // 8) * self.group_meta + slots * 1024 * 4096
        self.read_map()
        self.words = {}
        self.replay()

    def read_map(self):
        key, self.home = derive(self.master, b"sealed map", self.uuid), {}
        for segment in range(self.segments):
            entry = self.image[self.map + 16 * segment :][:16]
            if any(entry):
                assert hmac.digest(key, number(segment) + entry[:8], "sha256")[:8] == entry[8:]
                self.home[segment] = int.from_bytes(entry[:8], "little") - 1

    def retired(self):
        key, found = derive(self.master, b"sealed ring retired", b""), []
        for place in (0, 4096):
            record = self.image[MIB + place :][:64]
            magic, count, following, position = struct.unpack_from("<8sQQQ", record)
            if magic == b"LACRETD1" and hmac.digest(key, record[:32], "sha256") == record[32:]:
                found.append((count, following, position))
        return max(found)[1:]

    def batch(self, position):
        """The number and the bytes of the batch there, if it verifies."""
        at = MIB + 8192 + position
        if position + 64 > self.ring_len - 8192 or self.image[at : at + 8] != b"LACRING1":
            return None, None
        seq, salt, entries, area, total = struct.unpack_from("<Q16sIII", self.image, at + 8)
        if total > 8 * MIB or position + total > self.ring_len - 8192:
            return None, None
        data = self.image[at : at + total]
        associated, tag = data[:48] + bytes(16) + data[64:], data[48:64]
        try:
            AESGCM(derive(self.master, b"sealed ring", salt)).decrypt(number(seq, 12), tag, associated)
        except InvalidTag:
            return None, None
        return seq, data

    def replay(self):
        expected, position = self.retired()
        while True:
            for position in (position, 0):
                seq, data = self.batch(position)
                if seq == expected:
                    break
            else:
                return
            position += len(data)
            expected += 1
            entries, at = struct.unpack_from("<II", data, 32)
            for n in range(entries):
                kind, count, address = struct.unpack_from("<B3xIQ", data, 64 + 48 * n)
                meta = data[64 + 48 * n + 16 :][:32]
                if kind == 1:
                    self.words[address] = (data[at : at + 4096], meta[: self.m])
                    at += 4096
                elif kind == 2:
                    for block in range(address, address + count):
                        self.words[block] = (ZEROS, bytes(self.m))
                else:
                    assert kind == 3
                    home = int.from_bytes(meta[:8], "little")
                    self.home.pop(address, None)
                    if home:
                        self.home[address] = home - 1
                    for block in [b for b in self.words if b // 1024 == address]:
                        del self.words[block]
            assert at == len(data)

    def stored(self, block):
        """Ciphertext and metadata of the last word on a block."""
        if block in self.words:
            return self.words[block]
        if block // 1024 not in self.home:
            return ZEROS, bytes(self.m)
        group, n = divmod(self.home[block // 1024], 8)
        start = self.homes + group * (self.group_meta + 8 * 1024 * 4096)
        index, m = block % 1024, self.m
        data = start + self.group_meta + 4096 * (1024 * n + index)
        meta = start + m * (1024 * n + index)
        return self.image[data : data + 4096], self.image[meta : meta + m]

    def read(self, block):
        data, meta = self.stored(block)
        if not any(meta if self.m else data):
            return ZEROS
        if self.cipher == 2:
            assert meta[28:] == number(1, 4)
            key = derive(derive(self.master, b"sealed gcm", self.uuid), b"segment", number(block // 1024))
            return AESGCM(key).decrypt(meta[:12], data + meta[12:28], number(block))
        label, tweak = b"sealed xts", number(block, 16)
        if self.cipher == 1:
            label = b"sealed xts-random"
            encrypt = Cipher(AES(derive(self.master, label + b" tweak", self.uuid)), ECB()).encryptor().update
            tweak = encrypt(bytes(a ^ b for a, b in zip(encrypt(meta), tweak)))
        key = derive(self.master, label, self.uuid, 64)
        return Cipher(AES(key), XTS(tweak)).decryptor().update(data)


disk = Disk(load(sys.argv[1]), sys.argv[2].encode())
for block in range(disk.blocks):
    plain = disk.read(block)
    if any(plain):
        digest = 7
        for byte in plain:
            digest = (digest * 31 + byte) % (1 << 64)
        print(f"{block} {digest:016x}")
