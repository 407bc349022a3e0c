#!/bin/bash
# Checks the GPUs of this machine in under 8 minutes and prints tables. Exit code 0: all well, 1: a check failed, 2: no GPU.
#   benchmarks/gpu.sh [--quick]          PYTHON names another Python that has ovo_clinic
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
exec timeout --kill-after=10 470 "$python" benchmarks/gpu.py "$@"
