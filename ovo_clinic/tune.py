"""Hyper-parameter search: the same budget for every model, selected on the validation split, the test split unread."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
import pandas as pd
from optuna.trial import TrialState

from ovo_clinic import provenance, resources, study
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import Choice
from ovo_clinic.scheduling import Job, Scheduler
from ovo_clinic.search import EPOCHS, NUMBER, REASON, SECONDS, Search, Trial, monitor
from ovo_clinic.settings import TuneConfig
from ovo_clinic.study import ONE_PROCESS, Arm
from ovo_clinic.tuned import Found, Tuned, own_keys


@dataclass(frozen=True)
class Tuning:
    """A finished search.

    Attributes:
        name: of the search: the task and a hash of all that decides its result.
        folder: where `tuned.yaml` and `trials.csv` lie.
        prepared: the data.
        tuned: what was found.
        trials: one row a trial: model, number, state, validation metric, epochs, seconds, reason of failure, settings.
    """

    name: str
    folder: Path
    prepared: Prepared
    tuned: Tuned
    trials: pd.DataFrame

    @property
    def file(self) -> Path:
        """What `compare --tuned` takes."""
        return self.folder / "tuned.yaml"


def tune(
    experiment: Experiment,
    prepared: Prepared,
    fusion: Sequence[Choice],
    *,
    unimodal: bool = False,
    storage: str | None = None,
    scheduler: Scheduler = ONE_PROCESS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuning:
    """Searches settings for every head, and with `unimodal` for every modality alone, as `experiment.tune` says.

    Finished trials are taken from the storage; an interrupted search goes on where it was.

    Args:
        experiment: everything that is not searched.
        prepared: the data.
        fusion: the heads; options given with one of them are not searched.
        unimodal: also every modality alone.
        storage: of Optuna, an SQLAlchemy URL; default: sqlite under OVO_CLINIC_HOME.
        scheduler: where the trials are computed.
        on_progress: called with (trials done, trials in all).

    Raises:
        UserError: settings that do not fit, several devices, a storage that cannot be opened, or a model none of whose
            trials could be trained.
    """
    if experiment.training.devices not in (1, "1"):
        raise UserError(
            "tune: trains each trial on one device; leave out training.devices and let --workers, or --cluster with "
            "--gpus, share them"
        )
    rows = study.arms(experiment.with_compare({"tuned": None}), prepared, fusion, unimodal)
    _check_keys(experiment.tune, rows)
    opened = open_storage(storage)
    fixed = {choice.label: [f"model.fusion.{name}" for name in choice.options] for choice in fusion}
    searches = {arm.label: Search(arm, prepared, fixed.get(arm.label, ()), opened) for arm in rows}
    total = sum(search.budget for search in searches.values())

    def progress() -> None:
        on_progress(sum(len(search.finished()) for search in searches.values()), total)

    def done(job: Job) -> Sequence[Job]:
        assert isinstance(job, Trial)
        following = searches[job.label].record(job)
        progress()
        return following

    progress()
    if jobs := [job for search in searches.values() for job in search.jobs()]:
        scheduler.run(jobs, done)
    return _tuning(experiment, prepared, searches)


def _check_keys(settings: TuneConfig, rows: Sequence[Arm]) -> None:
    """Refuses a key that no model has, unless it is as in the default space, which is for models of any kind."""
    default = TuneConfig().space
    for key in (key for key, values in settings.space.items() if values != default.get(key)):
        if not any(own_keys(arm.experiment, key) for arm in rows):
            raise UserError(f"tune.space.{key}: none of {', '.join(arm.label for arm in rows)} has this setting")


def open_storage(url: str | None) -> optuna.storages.BaseStorage:
    """Opens an Optuna storage; the default one is readable by its owner only.

    Raises:
        UserError: it cannot be opened.
    """
    for name in ("alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if url is None:
        path = resources.home() / "tuning.db"
        path.touch(mode=0o600)
        url = f"sqlite:///{path}"
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # of SQLAlchemy, of a database driver, of one that is not installed
        from ovo_clinic.tracking import without_credentials  # loads MLflow

        shown = without_credentials(url)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"--storage: {shown} cannot be opened: {reason[:200].replace(url, shown)}") from None


def _tuning(experiment: Experiment, prepared: Prepared, searches: Mapping[str, Search]) -> Tuning:
    tuned = Tuned(
        task=experiment.task,
        split=prepared.manifest["digests"]["split"],
        sampler=experiment.tune.sampler,
        trials=experiment.tune.trials,
        monitor=monitor(experiment, prepared),
        models={label: _found(search) for label, search in searches.items()},
    )
    keys = [[search.key, search.budget] for search in searches.values()]
    name = f"{experiment.task}-{provenance.digest_of(keys)[:8]}"
    folder = resources.state("tuning", name)
    trials = pd.concat([_table(search) for search in searches.values()], ignore_index=True)
    found = Tuning(name, folder, prepared, tuned, trials)
    trials.to_csv(folder / "trials.csv", index=False)
    tuned.write(found.file)
    return found


def _found(search: Search) -> Found:
    best, trials = search.best(), search.finished().values()
    counts = {state: sum(trial.state == state for trial in trials) for state in TrialState}
    return Found(
        settings=best.params,
        validation=best.values[0],
        completed=counts[TrialState.COMPLETE],
        pruned=counts[TrialState.PRUNED],
        failed=counts[TrialState.FAIL],
        epochs=sum(trial.user_attrs[EPOCHS] for trial in trials),
    )


def _table(search: Search) -> pd.DataFrame:
    rows = [
        {
            "model": search.arm.label,
            NUMBER: number,
            "state": trial.state.name.lower(),
            "validation": trial.value,
            EPOCHS: trial.user_attrs[EPOCHS],
            SECONDS: trial.user_attrs[SECONDS],
            REASON: trial.user_attrs.get(REASON, ""),
            **trial.params,
        }
        for number, trial in search.finished().items()
    ]
    return pd.DataFrame(rows)
