#!/bin/sh
# Writes the lock files anew from pyproject.toml and constraints.txt; needs uv, the network, and torch's CPU build at hand.
#   docker/lock.sh FOLDER_WITH_THE_CPU_WHEEL_OF_TORCH
set -eu
cd "$(dirname "$0")/.."
torch=$(sed -n 's/^torch==//p' constraints.txt)
# Python 3.11, 3.12 and 3.13 give the same versions; hashes are those of all files of a release.
lock() {
    uv pip compile --quiet --generate-hashes --no-annotate --no-header --constraint constraints.txt \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 "$@" >/dev/null
}
lock --output-file docker/requirements.lock --extra cluster --extra postgresql pyproject.toml
echo "torch==$torch+cpu" | lock --output-file docker/requirements-cpu.lock --override /dev/stdin \
    --find-links "$1" --extra cluster --extra postgresql pyproject.toml
echo hatchling | lock --output-file docker/build.lock -
