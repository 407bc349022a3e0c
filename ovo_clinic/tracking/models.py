"""Trained models in a store: files, no pickle, that load where this package is not installed."""

import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput
from mlflow.models import Model
from packaging.requirements import Requirement

import ovo_clinic
from ovo_clinic import resources, runs
from ovo_clinic.errors import UserError
from ovo_clinic.predict import model_hash, outcome_names
from ovo_clinic.study import Comparison

_NAME_LENGTH = 256
_NOT_IN_NAMES = str.maketrans(dict.fromkeys("/:.%\"'", "_"))


def check_name(name: str) -> None:
    """Checks the name that a model is to be registered under, and found by as `models:/NAME/1` or `models:/NAME@ALIAS`.

    Raises:
        UserError: MLflow refuses it, or would not find it again.
    """
    refused = re.search(r"""[/:@'"`%?#\\\x00-\x1f]""", name)
    if refused or name.strip() != name or name in ("", ".", "..") or len(name) > _NAME_LENGTH:
        raise UserError(
            f"--register: {name[:60]!r} is no name for a model; give one such as mortality, of letters, digits, '-', "
            "'_' and single dots"
        )


def best_runs(comparison: Comparison) -> list[tuple[str, int]]:
    """(label, place among the seeds) of the network with the best validation metric, then of such a baseline.

    There is none of a kind that was not compared, or that is unsafe.
    """
    found: dict[bool, list[tuple[float, str, int]]] = {False: [], True: []}
    for arm in comparison.arms:
        for place, result in enumerate(comparison.results[arm.label]):
            if result["unsafe"] is None:
                score = result["metrics"]["validation"][result["monitor"]]
                score = -score if runs.lower_is_better(result["monitor"]) else score
                found[arm.kind == "baseline"].append((score, arm.label, place))
    # The first of equals.
    return [max(own, key=lambda entry: entry[0])[1:] for own in found.values() if own]


def log_model(client: MlflowClient, run: str, folder: Path, register: str | None = None) -> None:
    """Keeps what a run trained as an MLflow model; the tag `model` of the run says where, or why not.

    Args:
        client: of the store.
        run: its id there.
        folder: of the finished run.
        register: name in the registry that the model becomes a new version of.

    Raises:
        UserError: it should be registered, and a checkpoint that it reads is gone.
    """
    with tempfile.TemporaryDirectory(dir=resources.home()) as working:
        path = Path(working) / "mlflow"
        try:
            save(folder, path, Model(run_id=run))
        except UserError as error:
            if register is not None:
                raise
            client.set_tag(run, "model", f"not stored: {error}")
            return
        info = client.get_run(run).info
        name = str(info.run_name).translate(_NOT_IN_NAMES)
        model = client.create_logged_model(info.experiment_id, name=name, source_run_id=run, model_type="pyfunc")
        client.log_model_artifacts(model.model_id, str(path))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run, [LoggedModelOutput(model.model_id, 0)])
    client.set_tag(run, "model", model.model_uri)
    if register is not None:
        if not client.search_registered_models(filter_string=f"name = '{register}'"):
            client.create_registered_model(register)
        client.create_model_version(register, source=model.artifact_location, run_id=run, model_id=model.model_id)


def delete_model(client: MlflowClient, run: str, uri: str) -> None:
    """Deletes the model of a run that is to be deleted, unless it is registered."""
    if uri.startswith("models:/") and not client.search_model_versions(f"run_id = '{run}'"):
        client.delete_logged_model(uri.removeprefix("models:/"))


def save(run: Path, out: Path, model: Model) -> None:
    """Writes an MLflow model of a finished run.

    It holds the run's weights (safetensors), settings, scaling and the checkpoints that its encoders read, the source
    of this package, the exact versions of its requirements, a signature and a made-up input example.

    Args:
        run: folder of the run.
        out: a new folder.
        model: MLflow's description, which is completed.

    Raises:
        UserError: a checkpoint that it reads is gone.
    """
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Array

    from ovo_clinic import portable, served

    files = out.parent / "model"  # MLflow keeps the name of the folder that it copies
    portable.save(run, files)
    profiles = portable.inputs(files)
    cells: dict[str, DataType | Array] = {
        "number": DataType.double,
        "numbers": Array(DataType.double),
        "text": DataType.string,
        "file": DataType.binary,
    }
    inputs = [ColSpec(cells[kind], name, required=False) for name, kind in portable.columns(profiles).items()]
    names = outcome_names(runs.read_result(run)["task"])
    outputs = [ColSpec(DataType.double, f"probability_{name}") for name in names]
    mlflow.pyfunc.save_model(
        out,
        loader_module=served.__name__,
        data_path=str(files),
        code_paths=[str(Path(ovo_clinic.__file__).parent)],
        mlflow_model=model,
        signature=ModelSignature(Schema([*inputs]), Schema([*outputs])),
        input_example=portable.example(profiles),
        pip_requirements=requirements(),
        metadata={"model_hash": model_hash(run)},
    )
    for cache in out.rglob("__pycache__"):
        shutil.rmtree(cache)


def requirements() -> list[str]:
    """What this package requires, in the versions that are installed."""
    declared = [Requirement(line) for line in metadata.requires("ovo-clinic") or []]
    needed = [found.name for found in declared if found.marker is None or found.marker.evaluate({"extra": ""})]
    # A local version (2.13.0+cpu) is of one index only.
    return [f"{name}=={metadata.version(name).split('+')[0]}" for name in needed]


def download(client: MlflowClient, uri: str, name: str, out: Path) -> Path:
    """The folder of an MLflow model, fetched.

    Args:
        client: of the store.
        uri: of the store.
        name: `models:/...`, `runs:/...`, or the id of a run that keeps a model.
        out: a folder that the model's comes into.

    Raises:
        UserError: there is no such model in the store.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    try:
        location = _location(client, name)
        return Path(download_artifacts(location, dst_path=str(out), tracking_uri=uri, registry_uri=uri))
    except (MlflowException, OSError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{name}: is no folder of a run, no run under {resources.home()} and no model in the MLflow store "
            f"({reason}); `ovo-clinic ui` shows what there is"
        ) from None


def _location(client: MlflowClient, name: str) -> str:
    """Where the files of a model lie; MLflow's own resolution looks into its global store whatever store is meant."""
    scheme, _, rest = name.rpartition(":/")
    if scheme != "models":
        return _location(client, client.get_run(rest.split("/")[0]).data.tags["model"])
    if "@" in rest:
        return str(client.get_model_version_by_alias(*rest.split("@", 1)).source)
    if "/" in rest:
        return str(client.get_model_version(*rest.split("/", 1)).source)
    return str(client.get_logged_model(rest).artifact_location)
