"""Raw files -> checked tables -> patient split -> cached arrays, manifest and attrition table.

Nothing downstream of this module touches raw files. A prepared data set is a folder `cache/<dataset>/<key>` whose key
is a hash of everything that decides its content: the spec, the task's resolved options, the split, the source of the
pipeline and of this package's data modules, and the raw files' names, sizes and sampled content. Image files, of which
a download may lack most, are known once the pipeline has chosen them; their names and sizes join the key then.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import ovo_clinic
from ovo_clinic import (
    checks,
    modality_files,
    provenance,
    raw,
    raw_folders,
    registry,
    resources,
    sources,
    spec,
    split_lists,
    splitting,
    tables,
)
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import DataRequest, Experiment
from ovo_clinic.locks import locked
from ovo_clinic.prepared import TASK_FIELDS, Prepared

__all__ = ["Prepared", "find", "prepare", "prepare_task"]

_FORMAT = 2
_WORK, _WATCHED = "work", "watched.parquet"
_KEPT_SECONDS = 7 * 24 * 3600
"""How long the finished steps of a killed run wait for the next one."""


def prepare(request: DataRequest, folders: Mapping[str, Path], memory: int | None = None) -> Prepared:
    """The prepared data set of a request, from the cache or from the raw files.

    Args:
        request: from `Experiment.data_request`.
        folders: raw folders by source, {"": DIR} for a single one; empty for a data set that needs none.
        memory: bytes that the pipeline should keep within; default: a third of the machine's.

    Raises:
        UserError: anything wrong with the raw files; nothing half-written is left behind. What a killed or interrupted
            run had finished is kept for the next one.
    """
    if request.spec.raw and not folders:
        raise UserError(f"--raw: data set '{request.spec.name}' needs the folder of its raw files")
    raw_folder = raw.RawFolder(folders, request.spec.tables if request.spec.raw else {}, memory)
    files = raw_folder.fingerprint()
    key = provenance.digest_of({"request": _request_digest(request), "files": files, "sources": raw_folder.sources()})[
        :32
    ]
    parent = resources.state("cache", request.spec.name)
    _remove_abandoned(parent, key)
    with locked(parent / f"{key}.lock"):
        target = _finished(parent, key, raw_folder) or _build(request, raw_folder, files, parent, key)
    _remember(request, parent, target.name)
    return Prepared.open(target)


def prepare_task(experiment: Experiment, raw_folder: raw_folders.Given | None, memory: int | None = None) -> Prepared:
    """The prepared data set of an experiment: from its raw folder, or as last prepared where none is given.

    Args:
        experiment: names the task.
        raw_folder: one folder, or one for each source.
        memory: as in `prepare`.

    Raises:
        UserError: no such folder, anything wrong with the raw files, or not prepared yet.
    """
    request = experiment.data_request()
    if raw_folder is None:
        return find(request)
    return prepare(request, raw_folders.by_source(raw_folder, request.spec.tables), memory)


def find(request: DataRequest) -> Prepared:
    """The data set that was last prepared for a request.

    Raises:
        UserError: it was not prepared yet.
    """
    if not request.spec.raw:
        return prepare(request, {})
    parent = resources.home() / "cache" / request.spec.name
    pointer = parent / f"{_request_digest(request)[:32]}.latest"
    if not pointer.is_file() or not (parent / pointer.read_text().strip() / "manifest.json").is_file():
        raise UserError(
            f"task '{request.task_name}' with these options is not prepared in {resources.home()}; "
            f"give --raw DIR, or run `ovo-clinic prepare {request.task_name} --raw DIR` with the same options"
        )
    return Prepared.open(parent / pointer.read_text().strip())


def _request_digest(request: DataRequest) -> str:
    pipeline = resources.find("pipelines", request.spec.pipeline, request.spec_path.parent)
    return provenance.digest_of(
        {
            "format": _FORMAT,
            "spec": request.spec.digest(),
            "task": request.task_name,
            "options": dict(request.options),
            "split": _split_settings(request),
            "sources": [
                hashlib.sha256(path.read_bytes()).hexdigest() for path in sources.closure([pipeline, Path(__file__)])
            ],
            "polars": pl.__version__,
        }
    )


def _split_settings(request: DataRequest) -> dict[str, Any]:
    lists = {found.file: found.sha256 for found in request.lists}
    return request.split.model_dump() | ({"lists": lists} if lists else {})


def _finished(parent: Path, key: str, raw_folder: raw.RawFolder) -> Path | None:
    """The folder that holds the data already, unless image files have come or changed since."""
    for manifest in sorted(parent.glob(f"{key}*/manifest.json")):
        folder = manifest.parent
        watched = folder / _WATCHED
        if folder.suffix != ".partial" and (
            not watched.is_file() or modality_files.unchanged(pl.read_parquet(watched), raw_folder)
        ):
            return folder
    return None


def _build(request: DataRequest, raw_folder: raw.RawFolder, files: list[Any], parent: Path, key: str) -> Path:
    """Prepares the data in a working folder that takes its name when it is complete.

    The working folder outlives a kill: of what is in it, the finished steps in `work` are taken up again.
    """
    working = parent / f"{key}.partial"
    working.mkdir(mode=0o700, exist_ok=True)
    for path in working.iterdir():
        if path.name != _WORK:
            path.unlink()
    try:
        written = _write(request, raw_folder.working_in(working / _WORK), working)
        key = f"{key}-{written['images'][:8]}" if written["images"] else key
        manifest = {"format": _FORMAT, "key": key, **written, "files": files}
        (working / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(working / _WORK, ignore_errors=True)
        for path in working.iterdir():
            path.chmod(0o600)
        shutil.rmtree(parent / key, ignore_errors=True)
        working.rename(parent / key)
    except Exception:
        shutil.rmtree(working, ignore_errors=True)
        raise
    return parent / key


def _write(request: DataRequest, raw_folder: raw.RawFolder, folder: Path) -> dict[str, Any]:
    """Writes all files but the manifest; returns what stands in it."""
    result = run_pipeline(request, raw_folder)
    cohort = checks.checked_cohort(result, request)
    split = _split(cohort, request)
    parts = [part for part in (*splitting.SPLITS, split_lists.UNLISTED) if part in splitting.SPLITS or part in split]
    modalities, notes = {}, dict(result.notes)
    watched: list[pl.DataFrame] = []
    for name in (name for name in request.spec.modalities if name in result.modalities):
        table = result.modalities[name]
        written = modality_files.write(name, table, cohort["unit_id"], split == "train", folder, raw_folder)
        if written.array is not None:
            checks.check_columns(name, written.array, request)
        present = {part: int(written.present[split == part].sum()) for part in parts}
        modalities[name] = {"title": request.spec.modalities[name], **written.entry, "present": present}
        notes |= written.notes
        watched += [] if written.watched is None else [written.watched]
    modality_files.take_images(raw_folder, folder, modalities)
    split_table = cohort.select("unit_id").with_columns(split=pl.Series(split))
    cohort.write_parquet(folder / "cohort.parquet")
    split_table.write_parquet(folder / "split.parquet")
    if watched:
        pl.concat(watched).write_parquet(folder / _WATCHED)
    return {
        "dataset": request.spec.name,
        "task": request.task_name,
        **request.task.model_dump(include=set(TASK_FIELDS)),
        "options": dict(request.options),
        "split": _split_settings(request),
        "units": {part: int((split == part).sum()) for part in parts},
        "patients": {part: cohort.filter(pl.Series(split == part))["patient_id"].n_unique() for part in parts},
        "modalities": modalities,
        "patients_apart": splitting.patients_apart(cohort, split),
        "attrition": [_described(step) for step in result.attrition],
        "notes": notes
        | split_lists.found_notes(cohort, request.lists)
        | checks.label_notes(cohort, split, request.task),
        "images": provenance.digest_of([frame.rows() for frame in watched]) if watched else "",
        "digests": {
            "spec": request.spec.digest(),
            "split": hashlib.sha256(split_table.write_csv().encode()).hexdigest(),
        },
        "versions": {"ovo_clinic": ovo_clinic.__version__, "polars": pl.__version__, "numpy": np.__version__},
    }


def _split(cohort: pl.DataFrame, request: DataRequest) -> npt.NDArray[np.str_]:
    """(N,) the part of every unit: drawn, or of the published lists."""
    if not request.lists:
        return splitting.split_units(cohort, request.split, request.task.target, request.task.identifiers)
    split = split_lists.split_by_lists(cohort, request.lists, request.task.identifiers)
    splitting.assert_disjoint(cohort, split, ["patient_id"])
    return split


def _described(step: tables.Step) -> dict[str, Any]:
    optional = ("classes", "negatives")
    return {name: value for name, value in asdict(step).items() if name not in optional or value is not None}


def run_pipeline(request: DataRequest, raw_folder: raw.RawFolder) -> tables.Tables:
    """The tables of the pipeline; a private one's mistakes are its author's, who gets the line in question.

    Raises:
        UserError: anything wrong with the raw files, or a mistake in a private pipeline.
    """
    function = spec.pipeline_function(request.spec, request.task_name, request.spec_path)
    options = registry.arguments(function, request.options, "data")
    path = resources.find("pipelines", request.spec.pipeline, request.spec_path.parent)
    try:
        result = function(raw_folder, request.spec, **options)
    except UserError:
        raise
    except Exception as error:
        if path.parent == resources.folder("pipelines"):
            raise
        place, line = resources.place_in(path, error), resources.first_line(error)
        raise UserError(f"{place}: {type(error).__name__}: {line}; mend the pipeline") from None
    if not isinstance(result, tables.Tables):
        raise UserError(f"{path}: {function.__name__} returned {type(result).__name__}; it should return Tables")
    return result


def _remember(request: DataRequest, parent: Path, name: str) -> None:
    pointer = parent / f"{_request_digest(request)[:32]}.latest"
    temporary = pointer.with_suffix(f".{os.getpid()}")
    temporary.write_text(name + "\n")
    temporary.chmod(0o600)
    temporary.replace(pointer)


def _remove_abandoned(parent: Path, key: str) -> None:
    """Removes working folders whose process is gone, but for finished steps that its next run may take up."""
    for path in parent.glob("*.partial"):
        with locked(path.with_suffix(".lock"), wait=False) as free:
            worth_keeping = (path / _WORK).is_dir() and time.time() - path.stat().st_mtime < _KEPT_SECONDS
            if free and path.stem != key and not worth_keeping:
                shutil.rmtree(path, ignore_errors=True)
