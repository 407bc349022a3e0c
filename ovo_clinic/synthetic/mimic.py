"""Synthetic MIMIC-IV, MIMIC-CXR and MIMIC-IV-Note: raw files with real names, headers, quirks, and a known signal.

No row comes from a real person. The signal is described in `mimic_signal`: a part in every modality alone, and a part
that only two modalities together tell.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic import mimic_signal
from ovo_clinic.synthetic.folders import appearing, gzipped
from ovo_clinic.synthetic.mimic_charts import chart_table, item_names
from ovo_clinic.synthetic.mimic_hospital import (
    admission_table,
    diagnosis_names,
    diagnosis_table,
    patient_table,
    stay_table,
    version_folder,
)
from ovo_clinic.synthetic.mimic_images import Format, Images, metadata_table, record_table, write_images
from ovo_clinic.synthetic.mimic_labs import lab_table, test_names
from ovo_clinic.synthetic.mimic_notes import author_table, discharge_table, exam_table, radiology_table
from ovo_clinic.synthetic.mimic_oracle import Oracle
from ovo_clinic.synthetic.mimic_stays import MOST_PATIENTS, Chunk, Version
from ovo_clinic.synthetic.mimic_targets import TARGETS

CHUNK_CHART_ROWS = 250_000


@SYNTHETIC.register("mimic")
def write(
    out: Path,
    *,
    patients: int = 2000,
    seed: int = 0,
    version: Version = "2.2",
    chart_rows_per_stay: int = 400,
    lab_rows_per_stay: int = 60,
    cxr: Format = "jpg",
    image_pixels: int = 96,
    notes: bool = True,
) -> dict[str, Any]:
    """MIMIC-IV 1.0, 2.2 or 3.1 with MIMIC-CXR and notes, in iv/, cxr/ and note/; labels 25 phenotypes, hospital death.

    Beside it stand `oracle.csv.gz` (stay_id, and the probability that each label of its admission was drawn from) and
    `SYNTHETIC.json` (the returned value). The same options give the same bytes, and iv/ is the same whatever `cxr` and
    `notes` are. Everything is streamed, some hundred stays at a time.

    Args:
        out: folder that is new or empty; it appears when all is written.
        patients: number of people; about 1.2 ICU stays each.
        seed: of all randomness.
        version: of MIMIC-IV: names, headers and value sets are that version's.
        chart_rows_per_stay: about how many rows of chartevents a stay has on average (the real one: 4,300).
        lab_rows_per_stay: about how many rows of labevents a stay has on average.
        cxr: `jpg` as MIMIC-CXR-JPG with its metadata, `dicom` as MIMIC-CXR with headers alone, or `none`.
        image_pixels: longer side of the images.
        notes: whether to write radiology reports and discharge notes.

    Returns:
        seed, options, counts, the signal with its coefficients, and the AUROC of the oracle.

    Raises:
        UserError: a number out of range, or `out` is not a new or empty folder.
    """
    numbers = {
        "patients": (patients, 1, MOST_PATIENTS),
        "seed": (seed, 0, None),
        "chart_rows_per_stay": (chart_rows_per_stay, 30, 100_000),
        "lab_rows_per_stay": (lab_rows_per_stay, 1, 10_000),
        "image_pixels": (image_pixels, 32, 4096),
    }
    for name, (value, least, most) in numbers.items():
        if value < least or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"a number from {least} to {most}"
            raise UserError(f"{name}: {value} is out of range; give {limits}")
    options = {
        "patients": patients,
        "version": version,
        "chart_rows_per_stay": chart_rows_per_stay,
        "lab_rows_per_stay": lab_rows_per_stay,
        "cxr": cxr,
        "image_pixels": image_pixels,
        "notes": notes,
    }
    with appearing(out) as folder, ExitStack() as stack:
        writer = _Writer(folder, stack)
        oracle = _write_chunks(writer, seed, options)
        report = {
            "data_set": "mimic",
            "note": "synthetic: no row comes from a real person",
            "seed": seed,
            "options": options,
            "counts": {"patients": patients, "rows": writer.rows},
            "signal": mimic_signal.describe(),
            "oracle": oracle.report(),
        }
        stack.close()
        (folder / "SYNTHETIC.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


class _Writer:
    """The csv.gz files of a folder, each written in pieces."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.rows: dict[str, int] = {}
        self._stack = stack
        self._files: dict[str, IO[bytes]] = {}

    def add(self, name: str, frame: pl.DataFrame) -> None:
        """Appends rows to the file `name` (a path below the folder, without `.csv.gz`)."""
        if name not in self._files:
            path = self.folder / f"{name}.csv.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = self._stack.enter_context(gzipped(path))
            self.rows[name] = 0
            frame.clear().write_csv(self._files[name])
        frame.write_csv(self._files[name], include_header=False, datetime_format="%Y-%m-%d %H:%M:%S")
        self.rows[name] += len(frame)


def _write_chunks(writer: _Writer, seed: int, options: dict[str, Any]) -> Oracle:
    """Writes all files, some people at a time."""
    oracle = Oracle()
    patients, version = options["patients"], options["version"]
    for name, frame in _dictionaries(version):
        writer.add(name, frame)
    step = max(20, min(2000, CHUNK_CHART_ROWS // options["chart_rows_per_stay"]))
    for start in range(0, patients, step):
        rng = np.random.default_rng([seed, start])
        span = range(start, min(start + step, patients))
        chunk = Chunk.draw(rng, span, patients, version, writer.rows.get("iv/hosp/labevents", 0))
        for name, frame in _tables(rng, chunk, options):
            writer.add(name, frame)
        if options["notes"]:
            for name, frame in _notes(np.random.default_rng([seed, start, 1]), chunk):
                writer.add(name, frame)
        if options["cxr"] != "none":
            _write_images(np.random.default_rng([seed, start, 2]), chunk, writer, options)
        oracle.add(chunk)
    return oracle


def _dictionaries(version: Version) -> Iterator[tuple[str, pl.DataFrame]]:
    yield "iv/hosp/d_icd_diagnoses", diagnosis_names()
    yield "iv/hosp/d_labitems", test_names(version)
    yield "iv/icu/d_items", item_names()


def _tables(rng: np.random.Generator, chunk: Chunk, options: dict[str, Any]) -> Iterator[tuple[str, pl.DataFrame]]:
    """One chunk's rows, file by file; only one frame is held at a time."""
    people = f"iv/{version_folder(chunk.version)}"
    yield f"{people}/patients", patient_table(rng, chunk)
    yield f"{people}/admissions", admission_table(rng, chunk)
    yield "iv/icu/icustays", stay_table(rng, chunk)
    yield "iv/hosp/diagnoses_icd", diagnosis_table(rng, chunk)
    yield "iv/icu/chartevents", chart_table(rng, chunk, options["chart_rows_per_stay"])
    yield "iv/hosp/labevents", lab_table(rng, chunk, options["lab_rows_per_stay"])
    probability = chunk.admissions.probability[chunk.stays.visit].round(6)
    columns = {target.name: probability[:, place] for place, target in enumerate(TARGETS)}
    yield "oracle", pl.DataFrame({"stay_id": chunk.stays.stay_id, **columns})


def _notes(rng: np.random.Generator, chunk: Chunk) -> Iterator[tuple[str, pl.DataFrame]]:
    reports, summaries = radiology_table(rng, chunk), discharge_table(rng, chunk)
    yield "note/radiology", reports
    yield "note/radiology_detail", exam_table(reports)
    yield "note/discharge", summaries
    yield "note/discharge_detail", author_table(summaries)


def _write_images(rng: np.random.Generator, chunk: Chunk, writer: _Writer, options: dict[str, Any]) -> None:
    """The image files of one chunk, and their rows in the list of the release."""
    kind, pixels = options["cxr"], options["image_pixels"]
    name = "cxr/mimic-cxr-2.0.0-metadata" if kind == "jpg" else "cxr/cxr-record-list"
    images = Images.draw(rng, chunk, writer.rows.get(name, 0), damage=name not in writer.rows)
    writer.add(name, metadata_table(rng, images, pixels) if kind == "jpg" else record_table(images))
    write_images(rng, images, chunk.stays, writer.folder / "cxr", pixels, kind)
