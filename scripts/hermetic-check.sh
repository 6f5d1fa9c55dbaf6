#!/bin/sh
# `make check` as a user without rights and without a network but loopback, in namespaces of its own: what it says must hold
# there too. Nothing is copied: files belong to whoever started this. Crates that Cargo wants must have been fetched.
# Usage: scripts/hermetic-check.sh [TARGET OF MAKE…]
set -eu
cd "$(dirname "$0")/.."
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
# Loopback comes up in the outer namespace, the only one with a right; the inner one has none.
CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} HOME=$home CARGO_NET_OFFLINE=true \
    unshare --user --map-root-user --net sh -c \
    'ip link set lo up && exec unshare --user --map-user=65534 --map-group=65534 make "$@"' sh "${@:-check}"
