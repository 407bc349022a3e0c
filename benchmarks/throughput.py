"""Runs per minute of `compare` with two workers, beside a plain loop over `train` in one process.

    python benchmarks/throughput.py [--patients N] [--seeds N] [--workers N] [--epochs N]

4 heads on the synthetic eICU cohort; both sides train the same runs, each from nothing, and start and import included.
Full size: --patients 20000 --seeds 10.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ovo_clinic.registry import SYNTHETIC

HEADS = ("concat", "self_attention", "cross_attention", "ovo")
LEAST_SPEEDUP = 1.7
TASK = "eicu_mortality_24h"

LOOP = """
import sys
from ovo_clinic import experiment, runs, training
from ovo_clinic.prepare import prepare_task
task, seeds, heads, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]
for head in heads:
    for seed in range(seeds):
        one = experiment.load(task, [*settings, f"model.fusion={head}", f"seed={seed}"])
        prepared = prepare_task(one, None)
        training.train(one, prepared, runs.run_folder(one, prepared))
"""
COMPARE = """
import sys
from ovo_clinic import experiment, study
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import Choice
from ovo_clinic.scheduling import LocalProcesses
task, seeds, heads, workers, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4], sys.argv[5:]
one = experiment.load(task, settings)
choices = [Choice(name=head) for head in heads]
study.compare(one, prepare_task(one, None), choices, seeds, scheduler=LocalProcesses(int(workers)))
"""


def main() -> None:
    """Measures both and prints their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=3000, help="people in the synthetic folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100, help="at most")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loop, compare = measure(Path(folder), asked.patients, asked.seeds, asked.workers, asked.epochs)
    count = len(HEADS) * asked.seeds
    print(f"{count} runs; plain loop over train {60 * count / loop:.1f} runs a minute ({loop:.0f} s)")
    print(f"compare with {asked.workers} workers {60 * count / compare:.1f} runs a minute ({compare:.0f} s)")
    print(f"ratio {loop / compare:.2f} (wanted: {LEAST_SPEEDUP} or more with two workers on two idle cores)")


def measure(folder: Path, patients: int, seeds: int, workers: int, epochs: int) -> tuple[float, float]:
    """Seconds of the plain loop and of compare."""
    SYNTHETIC.build("eicu", folder / "raw", options={"patients": patients})
    settings = [f"training.epochs={epochs}"]
    seconds = []
    for name, script, options in (("loop", LOOP, []), ("compare", COMPARE, [str(workers)])):
        # Each has a home of its own: finished runs would not be repeated.
        environment = {**os.environ, "OVO_CLINIC_HOME": str(folder / name), "OMP_NUM_THREADS": "1"}
        prepare = [sys.executable, "-m", "ovo_clinic.cli", "prepare", TASK, *settings, "--raw", str(folder / "raw")]
        subprocess.run(prepare, env=environment, check=True, stdout=subprocess.DEVNULL)
        words = [sys.executable, "-c", script, TASK, str(seeds), ",".join(HEADS), *options, *settings]
        started = time.perf_counter()
        subprocess.run(words, env=environment, check=True)
        seconds.append(time.perf_counter() - started)
    return seconds[0], seconds[1]


if __name__ == "__main__":
    main()
