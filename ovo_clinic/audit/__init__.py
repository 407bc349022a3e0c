"""The leak audit: what in a prepared data set, or in the runs trained on it, tells the model what it should not know.

Each check is one function `(Subject) -> Iterator[Finding | Unchecked]` in `CHECKS`; a new one is one more function.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ovo_clinic import experiment as experiments
from ovo_clinic.audit import duplicates, fitting, overlap, population, proxies, telling, timing
from ovo_clinic.audit.finding import Finding, Remarks, Report, Unchecked
from ovo_clinic.audit.subject import Subject, trained_on
from ovo_clinic.prepare import prepare_task
from ovo_clinic.raw_folders import Given

__all__ = ["CHECKS", "Finding", "Report", "Subject", "Unchecked", "audit", "look"]

Check = Callable[[Subject], Remarks]

CHECKS: tuple[Check, ...] = (
    telling.declared_leaks,
    overlap.people_in_two_parts,
    overlap.images_in_two_parts,
    duplicates.rows_under_two_ids,
    duplicates.notes_in_two_parts,
    duplicates.images_alike_in_two_parts,
    timing.records_after_prediction,
    fitting.scalings,
    fitting.vocabularies,
    fitting.pretrained_texts,
    telling.names_of_outcomes,
    telling.features_that_tell,
    proxies.identifier_or_calendar_proxies,
    population.prevalence_drift,
    population.selection_by_outcome,
)


def audit(task: str, overrides: Sequence[str] = (), *, raw: Given | None = None) -> Report:
    """Looks for leaks in a task's prepared data, its manifest, and the finished runs that were trained on it.

    Args:
        task: its name, or the path of a config.
        overrides: `key=value` settings, as when the data were prepared.
        raw: folder of the raw files; needed where the data are not prepared yet.

    Raises:
        UserError: as in `prepare_task`.
    """
    experiment = experiments.load(task, overrides)
    prepared = prepare_task(experiment, raw)
    request = experiment.data_request()
    return look(Subject(prepared, request.spec, request.task, trained_on(prepared)))


def look(subject: Subject, checks: Sequence[Check] = CHECKS) -> Report:
    """What the checks say of a prepared data set."""
    remarks = [replace(remark, check=check.__name__) for check in checks for remark in check(subject)]
    return Report(
        task=subject.prepared.manifest["task"],
        units=subject.prepared.cohort.height,
        runs=len(subject.folders),
        checks=[check.__name__ for check in checks],
        findings=[remark for remark in remarks if isinstance(remark, Finding)],
        unchecked=[remark for remark in remarks if isinstance(remark, Unchecked)],
    )
