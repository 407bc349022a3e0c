"""Resident memory of one process over many studies, one after the other: what leaks shows.

    python benchmarks/memory.py [--studies 200] [--settled 20]

Each study is a new one: two heads are trained in this process, then compared, with table, figures, report and MLflow.
Exit code 1 where the memory after the last study is more than 5 % above that after the settled ones.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

HEADS = ("concat", "ovo")
TASK = "simulation"
SETTINGS = ["data.samples=200", "data.modalities=3", "model.dim=8", "training.epochs=2", "training.accelerator=cpu"]
MOST_GROWTH = 1.05


def main() -> None:
    """Runs the studies and prints the memory on the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--settled", type=int, default=20, help="after so many all caches are taken to be full")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OVO_CLINIC_HOME"] = str(Path(folder) / "home")
        found = measure(asked.studies, asked.settled)
    growth = found[-1] / found[asked.settled - 1]
    print(
        f"after {asked.settled} studies {found[asked.settled - 1]:.0f} MiB, after {len(found)} {found[-1]:.0f} MiB: ",
        end="",
    )
    print(f"{growth - 1:+.1%} (wanted: at most {MOST_GROWTH - 1:+.0%})")
    sys.exit(growth > MOST_GROWTH)


def measure(studies: int, settled: int) -> list[float]:
    """Resident memory in MiB after each study."""
    process, found, started = psutil.Process(), [], time.perf_counter()
    for number in range(studies):
        study(number)
        gc.collect()
        found.append(process.memory_info().rss / 2**20)
        if (number + 1) % settled == 0 or number == 0:
            seconds = (time.perf_counter() - started) / (number + 1)
            print(f"{number + 1:4d} studies  {found[-1]:7.0f} MiB  {seconds:5.1f} s each", flush=True)
    return found


def study(number: int) -> None:
    """One study with settings that no other one has."""
    from ovo_clinic import verbs

    settings = [*SETTINGS, f"training.learning_rate={1e-3 * (1 + number / 1000):.6f}"]
    for head in HEADS:
        verbs.train(TASK, [*settings, f"model.fusion={head}"])
    # The runs are there: nothing is left to the workers, so that all of it happens in this process.
    verbs.compare(TASK, settings, fusion=HEADS, seeds=1)


if __name__ == "__main__":
    main()
