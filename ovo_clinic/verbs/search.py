"""`tune`: settings for every head."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ovo_clinic import experiment as experiments
from ovo_clinic import study, tracking
from ovo_clinic.prepare import prepare_task
from ovo_clinic.raw_folders import Given
from ovo_clinic.verbs.work import Progress, local_or_cluster, no_progress

if TYPE_CHECKING:
    from ovo_clinic.tune import Tuning


@dataclass(frozen=True)
class Search:
    """A finished search.

    Attributes:
        tuning: what was found and tried.
        file: what `compare --tuned` takes.
        tracking_uri: where MLflow holds it.
    """

    tuning: "Tuning"
    file: Path
    tracking_uri: str


def tune(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: Given | None = None,
    fusion: Sequence[str] | None = None,
    unimodal: bool | None = None,
    sampler: str | None = None,
    trials: int | None = None,
    storage: str | None = None,
    out: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    gpus: float | None = None,
    tracking_uri: str | None = None,
    allow_remote_tracking: bool = False,
    on_progress: Progress = no_progress,
) -> Search:
    """Searches settings for every head with the same budget, on the validation split, and logs the search to MLflow.

    Args:
        task: a task's name or the path of a config.
        overrides: `key=value` settings; `tune.space` says what is searched.
        raw: as in `compare`.
        fusion: heads (default: the config's).
        unimodal: also search for every modality alone (default: the config's).
        sampler: `tpe`, `random` or `grid` (default: the config's).
        trials: how many for each head (default: the config's).
        storage: of Optuna, an SQLAlchemy URL (default: sqlite under OVO_CLINIC_HOME).
        out: also write the settings that were found here.
        workers: parallel processes (default: one per core).
        cluster: as in `compare`.
        gpus: as in `compare`.
        tracking_uri: MLflow store (default: local sqlite).
        allow_remote_tracking: permit a store or a storage on another machine.
        on_progress: called with (trials done, trials in all).

    Raises:
        UserError: anything wrong with the settings or the data.
    """
    from ovo_clinic import tune as tuning

    compared = {"fusion": fusion, "unimodal": unimodal}
    searched = {"sampler": sampler, "trials": trials}
    experiment = experiments.load(task, overrides)
    experiment = experiment.with_compare({k: v for k, v in compared.items() if v is not None})
    experiment = experiment.with_tune({k: v for k, v in searched.items() if v is not None})
    study.check_options(experiment, experiment.compare.fusion)  # preparing may take hours
    store = tracking.Store(tracking.tracking_uri(tracking_uri, allow_remote_tracking))
    found = tuning.tune(
        experiment,
        prepare_task(experiment, raw),
        experiment.compare.fusion,
        unimodal=experiment.compare.unimodal,
        storage=None if storage is None else tracking.permitted(storage, allow_remote_tracking, "--storage"),
        scheduler=local_or_cluster(workers, cluster, gpus),
        on_progress=on_progress,
    )
    if out is not None:
        found.tuned.write(out)
    store.log_tuning(found, {**experiment.resolved(), "tune": experiment.tune.model_dump(mode="json")})
    return Search(found, out or found.file, store.uri)
