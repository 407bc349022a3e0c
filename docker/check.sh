#!/bin/bash
# Where no Docker is at hand: carries the Dockerfile out in a Debian of its own, without CUDA, and runs the demo in it as the
# image's user, with no network and read-only data. As root; needs debootstrap, a network and 5 GB.
#   docker/check.sh FOLDER [--bind DIR] [--env NAME=VALUE] [--build-arg NAME=VALUE]
# FOLDER gets the roots. torch's CPU build has to be found: --build-arg PIP_FIND_LINKS=DIR --bind DIR
set -euo pipefail
folder=${1:?name a folder for the roots}
command -v debootstrap >/dev/null || { echo "needs debootstrap: apt-get install debootstrap" >&2; exit 2; }
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tests/docker_steps.py --work "$folder" --build-arg LOCK=requirements-cpu.lock "${@:2}"
