"""`compare` and the report of a finished comparison."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ovo_clinic import (
    encoder_tables,
    figures,
    missingness,
    modality_figures,
    report,
    scheduling,
    studies,
    study,
    tracking,
)
from ovo_clinic import experiment as experiments
from ovo_clinic import folds as crossing
from ovo_clinic import importance as importances
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.html import material, page
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.raw_folders import Given
from ovo_clinic.report import ComparisonTable
from ovo_clinic.study import Comparison
from ovo_clinic.verbs.work import Progress, local_or_cluster, no_progress


@dataclass(frozen=True)
class Study:
    """A finished comparison.

    Attributes:
        comparison: its runs.
        table: its numbers.
        figures: name -> PNG.
        tracking_uri: where MLflow holds it.
        report: the study report (HTML).
        modality_tables: where they were asked for, `missingness` (of `missingness.sweep`) and `importance` (of
            `importance.table`).
        encoder_tables: of `encoder_tables.tables`.
        folds: of the cross-validation, where one was asked for.
        beside: the same comparison under the other options that the task's spec names; None where it names none.
    """

    comparison: Comparison
    table: ComparisonTable
    figures: Mapping[str, Path]
    tracking_uri: str
    report: Path
    modality_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    encoder_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    folds: crossing.FoldTables | None = None
    beside: "Study | None" = None


def compare(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: Given | None = None,
    fusion: Sequence[str] | None = None,
    seeds: int | None = None,
    unimodal: bool | None = None,
    baselines: Sequence[str] | None = None,
    tuned: str | Path | None = None,
    missing: Sequence[float] | None = None,
    pattern: str | None = None,
    importance: bool | None = None,
    folds: int | None = None,
    beside: bool = True,
    register: str | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    gpus: float | None = None,
    tracking_uri: str | None = None,
    allow_remote_tracking: bool = False,
    on_progress: Progress = no_progress,
) -> Study:
    """Trains several fusion heads over the same seeds and splits, evaluates them and logs the study to MLflow.

    Args:
        task: a task's name or the path of a config.
        overrides: `key=value` settings.
        raw: folder of the raw files, or one for each source, where the task is not prepared yet.
        fusion: heads (default: the config's).
        seeds: how many (default: the config's).
        unimodal: also train every modality alone (default: the config's).
        baselines: classical ones beside the heads, `logistic`, `gradient_boosting` (default: the config's).
        tuned: file that `tune` wrote, whose settings every head and modality takes over (default: the config's).
        missing: shares of the test units' modalities that are hidden in turn (default: the config's).
        pattern: what goes missing together: `random`, `natural` or `modality:NAME` (default: the config's).
        importance: also measure what each modality is worth (default: the config's).
        folds: also cross-validate by patient with so many folds, each prepared by itself (default: the config's).
        beside: also under the other options that the task's spec says should be seen beside its own.
        register: name in MLflow's model registry that the best network by validation becomes a new version of.
        workers: parallel processes (default: one per core).
        cluster: address of a Ray cluster, or `auto`, that computes the runs instead.
        gpus: of each run there; 0.25 = four runs share one (default: none).
        tracking_uri: MLflow store (default: local sqlite).
        allow_remote_tracking: permit a store on another machine.
        on_progress: called with (runs done, runs in all).

    Raises:
        UserError: anything wrong with the settings or the data.
    """
    asked: dict[str, Any] = {
        "fusion": fusion,
        "seeds": seeds,
        "unimodal": unimodal,
        "baselines": baselines,
        "tuned": None if tuned is None else Path(tuned).expanduser().resolve(),
        "missing": missing,
        "pattern": pattern,
    }
    asked |= {"importance": importance, "folds": folds}
    experiment = experiments.load(task, overrides).with_compare({k: v for k, v in asked.items() if v is not None})
    if experiment.seed:
        raise UserError("seed: compare trains with the seeds 0, 1, 2, ...; leave it out, and say how many by --seeds")
    if register is not None:
        tracking.check_name(register)
    if pattern is not None and not experiment.compare.missing:
        raise UserError("--pattern: says what goes missing together; give --missing, too, such as --missing 0.25,0.5")
    study.check_options(experiment, experiment.compare.fusion)  # preparing may take hours
    study.baseline_arms(experiment, experiment.compare.baselines)
    store = tracking.Store(tracking.tracking_uri(tracking_uri, allow_remote_tracking))
    scheduler = local_or_cluster(workers, cluster, gpus)
    prepare = partial(prepare_task, raw_folder=raw)
    other = experiment.beside() if beside else None
    if other is not None:  # a mistake shows before anything is trained
        prepare(experiment)
        prepare(other)
    found = _study(experiment, prepare, store, scheduler, on_progress, register)
    if other is None:
        return found
    return replace(found, beside=_study(other, prepare, store, scheduler, on_progress))


def _study(
    experiment: Experiment,
    prepare: Callable[[Experiment], Prepared],
    store: tracking.Store,
    scheduler: scheduling.Scheduler,
    on_progress: Progress,
    register: str | None = None,
) -> Study:
    settings = experiment.compare
    prepared = prepare(experiment)
    if register is not None:
        _check_network(experiment, prepared)  # training may take hours
    folds = crossing.prepared(experiment, settings.folds, prepare) if settings.folds else []
    if settings.missing:
        missingness.Pattern.parse(settings.pattern, prepared.chosen(experiment.modalities))
    encoder_tables.check(experiment, prepared)
    compared = partial(study.compare, fusion=settings.fusion, scheduler=scheduler, on_progress=on_progress)
    trained = partial(compared, prepared=prepared, seeds=settings.seeds)
    all_rows = {"unimodal": settings.unimodal, "baselines": settings.baselines}
    with tracking.machine_load() as load:
        comparison = trained(experiment, **all_rows)
    table = report.comparison_table(comparison)
    report.save(comparison, table)
    crossed = None
    if folds:
        once = partial(compared, seeds=1, **all_rows)
        crossed = crossing.tables([once(*fold) for fold in folds])
        crossed.save(comparison.folder)
    found = _modality_tables(experiment, comparison, trained)
    for name, values in found.items():
        values.to_csv(comparison.folder / f"{name}.csv", index=False)
    of_encoders = encoder_tables.tables(comparison)
    drawn = figures.draw_comparison(comparison, table) | modality_figures.draw(comparison, found)
    drawn |= encoder_tables.draw(comparison, of_encoders)
    studies.write(comparison)
    written = _write_report(comparison, table)
    config = {**experiment.resolved(), "compare": experiment.compare.model_dump(mode="json", exclude={"tuned"})}
    config["tuned"] = comparison.tuned.model_dump(mode="json") if comparison.tuned else None
    store.log_comparison(comparison, table, drawn, config, load=load, register=register)
    return Study(comparison, table, drawn, store.uri, written, found, of_encoders, crossed)


def _check_network(experiment: Experiment, prepared: Prepared) -> None:
    """Raises UserError: no network is compared that may be registered."""
    from ovo_clinic.model import check_fusion

    settings = experiment.compare
    for arm in study.arms(experiment, prepared, settings.fusion, settings.unimodal):
        names = prepared.chosen(arm.experiment.modalities)
        if check_fusion(arm.experiment.model, [study.modality_of(prepared, name) for name in names]) is None:
            return
    raise UserError(
        "--register: every network of this comparison is unsafe (a prediction depends on other patients), or there is "
        "none; compare a safe one, too, or leave --register out"
    )


def _write_report(comparison: Comparison, table: ComparisonTable) -> Path:
    """The study report, and its tables as csv, in the study's folder."""
    found = material.gather(comparison, table)
    material.save(found)
    return page.write(found)


def write_report(name: str | None = None) -> Path:
    """Writes the report of a finished study anew, from its runs; returns the HTML file.

    Args:
        name: of a study, or its folder (default: the newest study).

    Raises:
        UserError: no such study, or its data or runs were removed.
    """
    comparison = studies.read(studies.find(name))
    table = report.comparison_table(comparison)
    report.save(comparison, table)
    return _write_report(comparison, table)


def _modality_tables(
    experiment: Experiment, comparison: Comparison, trained: Callable[[Experiment], Comparison]
) -> dict[str, pd.DataFrame]:
    """What was asked for of `missingness` and `importance`; for the latter the heads are trained without each modality.

    Args:
        experiment: with all modalities.
        comparison: its finished runs.
        trained: compares the same heads and seeds with other settings.
    """
    settings = experiment.compare
    names = comparison.prepared.chosen(experiment.modalities)
    found = {}
    if settings.missing:
        pattern = missingness.Pattern.parse(settings.pattern, names)
        found["missingness"] = missingness.sweep(comparison, missingness.with_zero(settings.missing), pattern)
    if settings.importance:
        left_out = {
            name: trained(experiment.model_copy(update={"modalities": others}))
            for name, others in _left_out(experiment, names).items()
        }
        found["importance"] = importances.table(comparison, left_out)
    return found


def _left_out(experiment: Experiment, names: Sequence[str]) -> dict[str, list[str]]:
    """Modality -> the others; none of two, as heads that attend need two, nor the one whose encoders are compared."""
    needed = experiment.compare.encoders
    return {name: [o for o in names if o != name] for name in names if len(names) > 2 and name not in needed}
