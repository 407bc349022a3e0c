"""Raw files -> checked tables -> patient split -> cached arrays, manifest and attrition table.

Nothing downstream of this module touches raw files. A prepared data set is a folder `cache/<dataset>/<key>` whose key
is a hash of everything that decides its content: the spec, the task's resolved options, the split, the source of the
pipeline and of this package's data modules, and the raw files' names, sizes and sampled content.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import ovo_clinic
from ovo_clinic import arrays, events, provenance, raw, registry, resources, spec, splitting, tables
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import DataRequest, Experiment
from ovo_clinic.locks import locked
from ovo_clinic.spec import TaskSpec

_FORMAT = 1
_TASK_FIELDS = ("title", "kind", "target", "classes", "leaky")


@dataclass(frozen=True)
class Prepared:
    """A prepared data set on disk.

    Attributes:
        folder: where it lies.
        manifest: everything about it but the rows: task, columns, splits, hashes, attrition, notes.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Opens a finished folder."""
        return cls(folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))

    @cached_property
    def cohort(self) -> pl.DataFrame:
        """unit_id, patient_id, labels and further columns, sorted by unit_id: row i of every array."""
        return pl.read_parquet(self.folder / "cohort.parquet")

    @cached_property
    def split(self) -> npt.NDArray[np.str_]:
        """(N,) `train`, `validation` or `test`."""
        return pl.read_parquet(self.folder / "split.parquet")["split"].to_numpy().astype("<U10")

    @property
    def task(self) -> TaskSpec:
        """The task, as far as training and evaluation need it."""
        return TaskSpec(**{name: self.manifest[name] for name in _TASK_FIELDS})

    @property
    def modalities(self) -> list[str]:
        """Names in the spec's order."""
        return list(self.manifest["modalities"])

    def chosen(self, modalities: Sequence[str] | None) -> list[str]:
        """The named modalities (None = all) in the spec's order.

        Raises:
            UserError: one that the data set does not have, or that has no feature in it.
        """
        unknown = sorted(set(modalities or []) - set(self.modalities))
        if unknown:
            raise UserError(f"modalities: {', '.join(unknown)}: not in the data set; valid: {self.modalities}")
        chosen = [name for name in self.modalities if modalities is None or name in modalities]
        empty = [name for name in chosen if not self.manifest["modalities"][name]["columns"]]
        if empty:
            rest = ",".join(name for name in chosen if name not in empty)
            raise UserError(
                f"modalities: {', '.join(empty)} has no feature in this data set (no training unit has it, or no code "
                f"is frequent enough); leave it out: modalities=[{rest}]"
            )
        return chosen

    def rows(self, split: str) -> npt.NDArray[np.int64]:
        """Rows of one split whose label is known, ascending."""
        labelled = ~np.isnan(self.target).reshape(len(self.target), -1).all(axis=1)
        return np.flatnonzero((self.split == split) & labelled)

    @cached_property
    def target(self) -> npt.NDArray[np.float32]:
        """(N,) or (N,K) labels, NaN = not labelled."""
        columns = self.manifest["target"]
        values = self.cohort.select(pl.col(columns).cast(pl.Float32).fill_null(np.nan)).to_numpy()
        return np.array(values[:, 0] if len(columns) == 1 else values, dtype=np.float32)

    def array(self, modality: str) -> arrays.ModalityArray:
        """A modality's array, memory-mapped."""
        entry = self.manifest["modalities"][modality]
        offsets = self.folder / f"{modality}.offsets.npy"
        return arrays.ModalityArray(
            columns=[arrays.Column(**column) for column in entry["columns"]],
            values=np.load(self.folder / f"{modality}.npy", mmap_mode="r", allow_pickle=False),
            present=np.load(self.folder / f"{modality}.present.npy", allow_pickle=False),
            offsets=np.load(offsets, allow_pickle=False) if entry["kind"] == "sequence" else None,
        )


def prepare(request: DataRequest, folders: Mapping[str, Path]) -> Prepared:
    """The prepared data set of a request, from the cache or from the raw files.

    Args:
        request: from `Experiment.data_request`.
        folders: raw folders by source, {"": DIR} for a single one; empty for a data set that needs none.

    Raises:
        UserError: anything wrong with the raw files; nothing half-written is left behind.
    """
    if request.spec.raw and not folders:
        raise UserError(f"--raw: data set '{request.spec.name}' needs the folder of its raw files")
    raw_folder = raw.RawFolder(folders, request.spec.tables if request.spec.raw else {})
    files = raw_folder.fingerprint()
    key = provenance.digest_of({"request": _request_digest(request), "files": files})[:32]
    parent = resources.home() / "cache" / request.spec.name
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = parent / key
    _remove_abandoned(parent)
    with locked(parent / f"{key}.lock"):
        if not (target / "manifest.json").is_file():
            working = parent / f"{key}.partial"
            shutil.rmtree(working, ignore_errors=True)
            working.mkdir(mode=0o700)
            try:
                _write(request, raw_folder, files, key, working)
                working.rename(target)
            finally:
                shutil.rmtree(working, ignore_errors=True)
    _remember(request, parent, key)
    return Prepared.open(target)


def prepare_task(experiment: Experiment, raw_folder: str | Path | None) -> Prepared:
    """The prepared data set of an experiment: from its raw folder, or as last prepared where none is given.

    Raises:
        UserError: no such folder, anything wrong with the raw files, or not prepared yet.
    """
    request = experiment.data_request()
    if raw_folder is None:
        return find(request)
    folder = Path(raw_folder)
    if not folder.is_dir():
        raise UserError(f"--raw: {folder} is not a folder")
    return prepare(request, {"": folder})


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
            f"give --raw DIR, or run: ovo-clinic prepare {request.task_name} --raw DIR"
        )
    return Prepared.open(parent / pointer.read_text().strip())


def _request_digest(request: DataRequest) -> str:
    sources = [resources.find("pipelines", request.spec.pipeline, request.spec_path.parent)]
    sources += [Path(str(module.__file__)) for module in (arrays, events, raw, splitting, tables)] + [Path(__file__)]
    return provenance.digest_of(
        {
            "format": _FORMAT,
            "spec": request.spec.digest(),
            "task": request.task_name,
            "options": dict(request.options),
            "split": request.split.model_dump(),
            "sources": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources],
            "polars": pl.__version__,
        }
    )


def _write(request: DataRequest, raw_folder: raw.RawFolder, files: list[Any], key: str, folder: Path) -> None:
    result = _run_pipeline(request, raw_folder)
    cohort = _checked_cohort(result, request)
    split = splitting.split_units(cohort, request.split, request.task.target, request.task.identifiers)
    modalities = {}
    for name in (name for name in request.spec.modalities if name in result.modalities):
        array = arrays.build(result.modalities[name], cohort["unit_id"], split == "train")
        _check_columns(name, array, request)
        array.write(folder, name)
        modalities[name] = {
            "title": request.spec.modalities[name],
            "kind": "vector" if array.offsets is None else "sequence",
            "columns": array.describe(),
            "present": {part: int(array.present[split == part].sum()) for part in splitting.SPLITS},
        }
    split_table = cohort.select("unit_id").with_columns(split=pl.Series(split))
    cohort.write_parquet(folder / "cohort.parquet")
    split_table.write_parquet(folder / "split.parquet")
    manifest = {
        "format": _FORMAT,
        "key": key,
        "dataset": request.spec.name,
        "task": request.task_name,
        **request.task.model_dump(include=set(_TASK_FIELDS)),
        "options": dict(request.options),
        "split": request.split.model_dump(),
        "units": {part: int((split == part).sum()) for part in splitting.SPLITS},
        "patients": {
            part: cohort.filter(pl.Series(split == part))["patient_id"].n_unique() for part in splitting.SPLITS
        },
        "modalities": modalities,
        "patients_apart": splitting.patients_apart(cohort, split),
        "attrition": [_described(step) for step in result.attrition],
        "notes": dict(result.notes) | _absent_classes(cohort, split, request.task),
        "files": files,
        "digests": {
            "spec": request.spec.digest(),
            "split": hashlib.sha256(split_table.write_csv().encode()).hexdigest(),
        },
        "versions": {"ovo_clinic": ovo_clinic.__version__, "polars": pl.__version__, "numpy": np.__version__},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o600)


def _described(step: tables.Step) -> dict[str, Any]:
    return {name: value for name, value in asdict(step).items() if name != "classes" or value is not None}


def _absent_classes(cohort: pl.DataFrame, split: npt.NDArray[np.str_], task: TaskSpec) -> dict[str, str]:
    """Which classes of a multiclass task have no unit in a part: there, no metric over all classes is defined."""
    if task.kind != "multiclass":
        return {}
    notes = {}
    for part in splitting.SPLITS:
        seen = set(cohort.filter(pl.Series(split == part))[task.target[0]].drop_nulls().cast(pl.Int64))
        if absent := [name for code, name in enumerate(task.classes) if code not in seen]:
            notes[f"classes without a unit in {part}"] = ", ".join(absent)
    return notes


def _run_pipeline(request: DataRequest, raw_folder: raw.RawFolder) -> tables.Tables:
    """The tables of the pipeline; a private one's mistakes are its author's, who gets the line in question."""
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


def _checked_cohort(result: tables.Tables, request: DataRequest) -> pl.DataFrame:
    """The cohort sorted by unit, with every promise of the pipeline checked."""
    needed = ["unit_id", "patient_id", *request.task.target]
    missing = [column for column in needed if column not in result.cohort.columns]
    if missing:
        raise UserError(
            f"{request.spec_path}: tasks.{request.task_name}: the cohort has no column {', '.join(missing)}; "
            f"it has {', '.join(result.cohort.columns)}"
        )
    cohort = result.cohort.sort("unit_id")
    if cohort.height == 0:
        raise UserError(f"task '{request.task_name}': no unit is left; {_attrition_line(result.attrition)}")
    for column in ("unit_id", "patient_id"):
        if cohort[column].null_count():
            raise UserError(f"task '{request.task_name}': {cohort[column].null_count()} units have no {column}")
    if cohort["unit_id"].n_unique() != cohort.height:
        raise UserError(f"task '{request.task_name}': a unit_id stands in two rows of the cohort")
    _check_labels(cohort, request)
    unknown = [name for name in result.modalities if name not in request.spec.modalities]
    assert not unknown, f"the pipeline returned modalities that the spec does not name: {unknown}"
    assert result.modalities, "the pipeline returned no modality"
    return cohort


def _check_labels(cohort: pl.DataFrame, request: DataRequest) -> None:
    highest = len(request.task.classes) - 1 if request.task.kind == "multiclass" else 1
    for column in request.task.target:
        values = cohort[column].drop_nulls().cast(pl.Float64)
        wrong = values.filter(~values.is_in([float(value) for value in range(highest + 1)])).len()
        if wrong:
            raise UserError(
                f"task '{request.task_name}': label column '{column}' holds {wrong} values other than 0 to {highest}"
            )
        if values.n_unique() < 2:
            raise UserError(
                f"task '{request.task_name}': label column '{column}' has fewer than two different values among "
                f"{cohort.height} units; nothing can be learned from it"
            )


def _attrition_line(steps: list[tables.Step]) -> str:
    return ", ".join(f"{step.rule}: {step.units}" for step in steps)


def _check_columns(name: str, array: arrays.ModalityArray, request: DataRequest) -> None:
    banned = {column.lower() for column in request.spec.banned if column not in request.task.uses_banned}
    used = sorted({column.group for column in array.columns if column.group.lower() in banned})
    if used:
        raise UserError(
            f"{request.spec_path}: modality '{name}' uses columns that state the outcome: {', '.join(used)}"
        )
    if array.values.dtype == np.float32:
        infinite = np.isinf(array.values).any(axis=0)
        wrong = [column.name for column, bad in zip(array.columns, infinite, strict=True) if bad]
        if wrong:
            raise UserError(
                f"modality '{name}': {wrong[0]} holds values beyond 3e38, which no measurement is; mend them"
            )


def _remember(request: DataRequest, parent: Path, key: str) -> None:
    pointer = parent / f"{_request_digest(request)[:32]}.latest"
    temporary = pointer.with_suffix(f".{os.getpid()}")
    temporary.write_text(key + "\n")
    temporary.replace(pointer)


def _remove_abandoned(parent: Path) -> None:
    """Removes working folders whose process is gone."""
    for path in parent.glob("*.partial"):
        with locked(path.with_suffix(".lock"), wait=False) as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)
