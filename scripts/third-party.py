#!/usr/bin/env python3
"""Prints which crates the program is linked with, and the texts of their licences, which must go with every copy of it.

usage: third-party.py [TARGET]
"""

import json
import pathlib
import subprocess
import sys

TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")


def cargo(*words):
    return subprocess.run(["cargo", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(target):
    """Name and version of every crate that is part of the program, without ours."""
    words = ["tree", "-p", "lacuna-cli", "-e", "normal", "--prefix", "none", "-f", "{p}", "--locked", "--target", target]
    lines = {" ".join(line.split()[:2]) for line in cargo(*words).splitlines() if line}
    return sorted(line.replace(" v", " ") for line in lines if not line.startswith("lacuna"))


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else "x86_64-unknown-linux-gnu"
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--locked", "--filter-platform", target))
    packages = {f"{p['name']} {p['version']}": p for p in metadata["packages"]}
    texts = {}
    print("lacuna is linked with these crates. Their licences, and the texts that come with them:\n")
    for name in linked(target):
        package = packages[name]
        folder = pathlib.Path(package["manifest_path"]).parent
        print(f"{name}: {package['license'] or package['license_file']}")
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name.upper().startswith(TEXTS):
                texts.setdefault(file.read_text(errors="replace").strip(), []).append(f"{name} ({file.name})")
    for text, of in texts.items():
        print("\n" + "=" * 80 + "\n" + ", ".join(of) + "\n\n" + text)


if __name__ == "__main__":
    main()
