"""Opens one header copy, from docs/format/header.md alone: read_header.py FILE PASSPHRASE.

Prints the level, the SHA-256 of its master keys and the ID of the disk. A second opinion on the Rust code, never a tool.
"""
import hashlib
import hmac
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def derive(key, label, context):
    info = b"lacuna v1 " + label + b"\0" + context
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key)


header = open(sys.argv[1], "rb").read()
assert len(header) == 16384
magic, version, length, generation, form = struct.unpack_from("<8sIIQH", header, 0)
foreign, uuid, memory, passes, lanes, salt, params_len = struct.unpack_from("<32s16sIII32sH", header, 32)
assert (magic, version, length) == (b"LACUNA\x00\x01", 1, 16384)
assert (generation, form) == (1, 1)
assert foreign == b"ORCLDISK" + b"lacuna".ljust(24, b"\0") and not any(header[26:32])
assert header[126 : 126 + params_len] == b"golden parameters"
assert not any(header[126 + params_len : 1150]) and not any(header[1158:2048])
assert struct.unpack_from("<Q", header, 1150) == (1048576,) and not any(header[10276:16320])
assert hashlib.sha256(header[:16320]).digest() == header[16320:16352]

kdf = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory)
stretched = kdf.derive(sys.argv[2].encode())
found = []
for position in range(8):
    slot = header[2048 + 1024 * position :][:1024]
    key = derive(stretched, b"key slot", bytes([position]) + uuid)
    associated = magic + struct.pack("<I", version) + uuid + bytes([position])
    try:
        found.append(AESGCM(key).decrypt(slot[:12], slot[12:285], associated))
    except InvalidTag:
        pass
(payload,) = found
level, keys = payload[0], payload[1:]
used, unused = keys[: 32 * (level + 1)], keys[32 * (level + 1) :]
assert len(keys) == 256 and not any(unused)
mac_key = derive(used[:32], b"header mac", uuid)
assert hmac.digest(mac_key, header[:16352], "sha256") == header[16352:]
print(f"level {level}")
print(hashlib.sha256(used).hexdigest())
print("id " + derive(used[:32], b"disk id", uuid)[:16].hex())
map_key = derive(used[:32], b"slot map", uuid)
slot_map = AESGCM(map_key).decrypt(header[10240:10252], header[10252:10276], magic + struct.pack("<I", version) + uuid)
assert sorted(slot_map) == [0] * 4 + [1] * 4
