#!/bin/bash
# Whether every crate that others may use could be published: what `cargo publish` checks and builds, without publishing. The
# crates are built from their archives against each other, and the registry is asked whether their versions are still free. It also
# looks at what a registry shows of each. Takes some minutes and a network.
#
#   publish-check.sh [cargo's options, such as --no-verify or --allow-dirty]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo metadata --no-deps --offline --format-version 1 | python3 -c '
import json, pathlib, sys
bad = []
packages = [p for p in json.load(sys.stdin)["packages"] if p["publish"] != []]
for p in packages:
    folder = pathlib.Path(p["manifest_path"]).parent
    wanted = [key for key in ("description", "license", "readme", "documentation", "rust_version", "categories") if not p[key]]
    wanted += [name for name in ("LICENSE-MIT", "LICENSE-APACHE") if not (folder / name).is_file()]
    own = [d for d in p["dependencies"] if d.get("path") and d["kind"] != "dev"]
    wanted += ["version of " + d["name"] for d in own if d["req"] != "^" + p["version"]]
    bad += [p["name"] + ": " + ", ".join(wanted)] if wanted else []
print("\n".join(bad) if bad else f"{len(packages)} crates have the facts that a registry wants", file=sys.stderr)
sys.exit(bool(bad))
'
# One folder for all, or what they depend on would be built for each.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/publish}
# Crates that are not for others (publish = false) are left out by cargo.
exec cargo publish --dry-run --workspace --locked "$@"
