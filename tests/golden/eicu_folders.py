"""Reads and writes raw eICU folders, has them prepared and exported as csv, and reads what was exported."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from ovo_clinic import experiment
from ovo_clinic import export as exporting
from ovo_clinic import prepare as preparing

TASK = "eicu_mortality_24h"

Tables = dict[str, pd.DataFrame]


def read(raw: Path) -> Tables:
    """Every file of a raw folder as text."""
    files = sorted(raw.glob("*.csv.gz"))
    return {path.name.removesuffix(".csv.gz"): pd.read_csv(path, dtype=str, keep_default_na=False) for path in files}


def write(tables: Tables, raw: Path, suffix: str = ".csv.gz") -> Path:
    """Writes a raw folder."""
    raw.mkdir(parents=True)
    for name, frame in tables.items():
        compression = {"method": "gzip", "compresslevel": 1} if suffix.endswith(".gz") else None
        frame.to_csv(raw / f"{name}{suffix}", index=False, compression=compression)
    return raw


def by_command_line(raw: Path, work: Path) -> Path:
    """`ovo-clinic prepare`, then `ovo-clinic export`, with their state under `work`; the folder of the export."""
    environment = os.environ | {"OVO_CLINIC_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
    out = work / "export"
    for verb, *more in (("prepare",), ("export", "--out", str(out), "--format", "csv")):
        line = [sys.executable, "-m", "ovo_clinic.cli", verb, TASK, "--raw", str(raw), *more]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{verb}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return out


def in_process(raw: Path, work: Path) -> Path:
    """The same by the functions behind the two commands, which saves two interpreter starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(work / "home"))
        prepared = preparing.prepare(experiment.load(TASK).data_request(), {"": raw})
        exporting.export(prepared, work / "export", "csv")
    return work / "export"


def contents(out: Path) -> dict[str, bytes]:
    """Exported file name -> its text."""
    return {path.name: gzip.decompress(path.read_bytes()) for path in sorted(out.glob("*.csv.gz"))}


def table(out: Path, name: str) -> pd.DataFrame:
    """One exported table, empty = NaN, by unit_id where it has that column."""
    frame = pd.read_csv(out / f"{name}.csv.gz", na_values=[""], keep_default_na=False, low_memory=False)
    return frame.set_index("unit_id") if "unit_id" in frame else frame
