"""A trained model on new raw data: probabilities of every unit, with what was missing and which model said so."""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ovo_clinic import drift, raw_folders, resources, runs
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import DataRequest
from ovo_clinic.locks import locked
from ovo_clinic.new_data import prepare_new
from ovo_clinic.prepared import Prepared
from ovo_clinic.raw_folders import Given

if TYPE_CHECKING:
    from ovo_clinic.predictors import Predictor

MODEL_FILES = ("result.json", "model.safetensors", "preprocessing.json", "inputs.json")
"""What of a run's folder makes a model: aggregates and weights, no rows."""
LOCK = "lock"
"""Name of the file by which a running `predict` holds its working folder."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of new data.

    Attributes:
        frame: unit_id, patient_id, `probability_<class or label>`, prediction_hours (after the index time; null where
            the task has none), missing_modalities (names, `;` between them) and model; one row a unit.
        file: where it was written (mode 0600).
        attrition: rule -> units left of the new data.
        leaky: why the task's features know the outcome, where they do.
    """

    frame: pl.DataFrame
    file: Path
    attrition: Mapping[str, int]
    leaky: str | None


def predict(
    model: str | Path,
    raw: Given,
    out: Path | None = None,
    *,
    config: str | None = None,
    embeddings: Mapping[str, Path] | None = None,
    tracking_uri: str | None = None,
    allow_remote_tracking: bool = False,
) -> Predictions:
    """Applies a trained model to a new raw folder of the same data set; labels need not be known.

    Args:
        model: folder of a run, id of a run (local, or of MLflow), or an MLflow model: a folder, `runs:/...` or
            `models:/...`.
        raw: folder of the new raw files, or one for each source.
        out: a new .csv or .parquet file (default: under OVO_CLINIC_HOME/predictions, one for each model and answer).
        config: of a private data set, the config whose folder its spec lies in.
        embeddings: modality -> file of the new units' embeddings, where the model reads some in place of it. That of
            the training is not taken unasked: units of another place may have the ids of its units.
        tracking_uri: MLflow store that a run id or a model's name is looked up in.
        allow_remote_tracking: permit a store on another machine.

    Raises:
        UserError: no such model, anything wrong with the raw files, data whose columns, units or vocabulary are not
            those of the training, saying how.
    """
    if out is not None:
        _check_writable(out)
    with _working_folder() as working:
        folder = _local(str(model)) or _fetched(str(model), working, tracking_uri, allow_remote_tracking)
        result = checked(folder, str(model))
        request = _request(folder, config)
        digest = model_hash(folder)
        data = working / "data"
        data.mkdir()
        trained = drift.load(folder / "inputs.json")
        from ovo_clinic import predictors  # loads torch

        _check_embeddings(predictors.reads_rows(folder, list(trained)), embeddings or {})
        prepared = prepare_new(request, raw_folders.by_source(raw, request.spec.tables), trained, data)
        predictor = predictors.load(folder, embeddings)
        frame = _frame(folder, prepared, request, digest, predictor.inputs(prepared, list(trained)), predictor)
        attrition = {step["rule"]: step["units"] for step in prepared.manifest["attrition"]}
    file = out or _default_file(request.task_name, digest, frame)
    _write(frame, file)
    return Predictions(frame, file, attrition, result["task"]["leaky"])


@contextmanager
def _working_folder() -> Iterator[Path]:
    """A folder of patients' rows, made with mode 0700; `scrub` leaves it alone while its process lives."""
    with tempfile.TemporaryDirectory(prefix="predict-", dir=resources.home()) as name, locked(Path(name) / LOCK):
        yield Path(name)


def _local(model: str) -> Path | None:
    """The folder of a model that is named by it, or by the name of a run; None where there is none."""
    found = [folder for folder in (Path(model), resources.home() / "runs" / model) if folder.is_dir()]
    return _inside(found[0]) if found else None


def _fetched(model: str, out: Path, tracking_uri: str | None, allow_remote_tracking: bool) -> Path:
    """The folder of a model of the MLflow store."""
    from ovo_clinic import tracking

    store = tracking.Store(tracking.tracking_uri(tracking_uri, allow_remote_tracking))
    return _inside(store.download_model(model, out))


def _inside(folder: Path) -> Path:
    """The folder itself, or where an MLflow model keeps the files of the run."""
    return folder / "data" / "model" if (folder / "MLmodel").is_file() else folder


def checked(folder: Path, model: str) -> runs.Result:
    """The result of the run that made the model.

    Args:
        folder: of the run, or of its `MODEL_FILES`.
        model: as the user named it.

    Raises:
        UserError: files are missing, or the head lets patients of one batch see each other.
    """
    lacking = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if lacking:
        raise UserError(
            f"{model}: holds no {', '.join(lacking)}; name the folder or id of a finished run, or an MLflow model of "
            "ovo_clinic; runs of older versions are to be trained again"
        )
    result = runs.read_result(folder)
    if result["unsafe"] is not None:
        raise UserError(
            f"{model}: its head is unsafe: {result['unsafe']}; a patient's prediction would depend on others"
        )
    return result


def model_hash(folder: Path) -> str:
    """sha256 of everything that decides what a model answers: settings, checkpoints, weights, scaling, columns."""
    result = runs.read_result(folder)
    digest = hashlib.sha256("".join([result["digests"]["config"], *result.get("files", {}).values()]).encode())
    for name in MODEL_FILES[1:]:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _request(folder: Path, config: str | None) -> DataRequest:
    """What the model was trained on, of the spec as it is here."""
    result, settings = runs.read_result(folder), runs.settings(folder)
    if config is not None:
        settings = settings.model_copy(update={"folder": resources.find("configs", config).parent})
    elif settings.dataset.endswith(".yaml") and not (Path.cwd() / settings.dataset).is_file():
        raise UserError(f"predict: the model's data set is private ({settings.dataset}); name its config with --config")
    request = settings.data_request()
    if request.spec.digest() != result["digests"]["spec"]:
        version = result["versions"]["ovo-clinic"]
        raise UserError(
            f"{request.spec_path}: is not the data spec that the model was trained with (by ovo-clinic {version}); use "
            "that one, or train again"
        )
    if not request.spec.raw:
        raise UserError(f"predict: data set '{request.spec.name}' makes its own data; there is no raw folder to read")
    return request


def outcome_names(task: Mapping[str, Any]) -> list[str]:
    """What each probability is of: the positive class, every class, or every label.

    Args:
        task: `task` of a run's result.
    """
    match task["kind"]:
        case "binary":
            return [(task["classes"] or ["negative", "positive"])[1]]
        case "multiclass":
            return list(task["classes"])
        case _:
            return list(task["target"])


def _check_embeddings(read: Sequence[str], given: Mapping[str, Path]) -> None:
    """Raises UserError: the file of a modality that is read is not named, or one of another modality is."""
    if unread := sorted(set(given) - set(read)):
        names = ", ".join(read) or "none"
        raise UserError(f"--embeddings: the model reads none in place of '{unread[0]}' (but of: {names}); leave it out")
    if lacking := [name for name in read if name not in given]:
        raise UserError(
            f"--embeddings: the model reads embeddings in place of {lacking[0]}; name the file of the new units: "
            f"--embeddings {lacking[0]}=FILE"
        )


def _frame(
    folder: Path,
    prepared: Prepared,
    request: DataRequest,
    digest: str,
    arrays: Mapping[str, ModalityArray],
    predictor: "Predictor",
) -> pl.DataFrame:
    probabilities = predictor.probabilities(arrays).reshape(prepared.cohort.height, -1)
    # Of what the model is fed: a unit may have a modality, and no embedding of it.
    present = np.stack([array.present for array in arrays.values()], axis=1)
    missing = [";".join(np.array(list(arrays))[~row]) for row in present]
    hours = request.options.get("prediction_hours")
    names = outcome_names(runs.read_result(folder)["task"])
    return prepared.cohort.select("unit_id", "patient_id").with_columns(
        *(pl.Series(f"probability_{name}", probabilities[:, place]) for place, name in enumerate(names)),
        pl.lit(hours, dtype=pl.Float64).alias("prediction_hours"),
        pl.Series("missing_modalities", missing, dtype=pl.String),
        pl.lit(digest).alias("model"),
    )


def _check_writable(file: Path) -> None:
    """Raises UserError: it is there already, has no folder, or is of another kind."""
    if file.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out: {file}: name a .csv or a .parquet file")
    if file.exists():
        raise UserError(f"--out: {file} exists; name a new file")
    if not file.parent.is_dir():
        raise UserError(f"--out: {file.parent} is no folder; make it first")


def _default_file(task: str, digest: str, frame: pl.DataFrame) -> Path:
    """Named after the model and its answers: those of one hospital do not take the place of another's."""
    answers = hashlib.sha256(frame.write_csv().encode()).hexdigest()
    return resources.state("predictions") / f"{task}-{digest[:12]}-{answers[:12]}.csv"


def _write(frame: pl.DataFrame, file: Path) -> None:
    """Writes patient-level rows: readable by their owner only from the first byte, whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        if file.suffix == ".csv":
            frame.write_csv(stream)
        else:
            frame.write_parquet(stream)
    temporary.replace(file)
