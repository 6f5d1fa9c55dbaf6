"""Opens files of a mounted vault by handle, after the kernel forgot them.

Argument: the mount point."""

import ctypes
import errno
import os
import sys

AT_FDCWD = -100
LONGEST = 128

libc = ctypes.CDLL(None, use_errno=True)
mount = os.open(sys.argv[1], os.O_RDONLY)


class Handle(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * LONGEST)]


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def handle_of(name):
    handle, mount_id = Handle(length=LONGEST), ctypes.c_int()
    path = os.fsencode(os.path.join(sys.argv[1], name))
    checked(libc.name_to_handle_at(AT_FDCWD, path, ctypes.byref(handle), ctypes.byref(mount_id), 0))
    return handle


def open_handle(handle):
    return checked(libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY))


def make(name, content):
    with open(os.path.join(sys.argv[1], name), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def forget():
    # Nodes that were used lately survive the first times.
    for _ in range(3):
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3")


os.mkdir("dir", dir_fd=mount)
for name in ["kept", "dir/moved", "deleted"]:
    make(name, name.encode())
kept, moved, deleted, directory = map(handle_of, ["kept", "dir/moved", "deleted", "dir"])
os.rename("dir/moved", "elsewhere", src_dir_fd=mount, dst_dir_fd=mount)
os.unlink("deleted", dir_fd=mount)
forget()
for handle, content in [(kept, b"kept"), (moved, b"dir/moved")]:
    file = open_handle(handle)
    assert os.read(file, 100) == content, content
    os.close(file)
forget()
file = open_handle(directory)
assert os.listdir(file) == [], os.listdir(file)
os.close(file)
forget()
try:
    open_handle(deleted)
    sys.exit("the handle of a deleted file opens")
except OSError as error:
    assert error.errno == errno.ESTALE, error
