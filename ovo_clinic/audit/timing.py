"""Checks that nothing was used that became known at or after the prediction."""

import numpy as np

from ovo_clinic.arrays import ModalityArray
from ovo_clinic.audit.finding import Finding, Remarks, Unchecked, listed
from ovo_clinic.audit.subject import Bools, Subject


def records_after_prediction(subject: Subject) -> Remarks:
    """Units with a record that was measured, ordered, stored or revised at or after the prediction time."""
    until = subject.prediction_hours
    names = subject.prepared.modalities
    if until is None:
        yield Unchecked(listed(names), "the task has no prediction_hours to hold the times of records against")
        return
    timeless = []
    for name in names:
        late = _late(subject, name, until)
        if late is None:
            timeless.append(name)
        elif count := int(late.sum()):
            yield Finding(
                what=f"{count} units have a record that became known at or after {until:g} h, the prediction time",
                where=name,
                count=count,
                why="when the prediction is made these records do not exist yet, and many tell the outcome",
                mend="in the pipeline, drop records by the last of their times (result and revision, chart and store, "
                "order and start) and count what is dropped",
                declared=subject.leaky,
            )
    if timeless:
        yield Unchecked(listed(timeless), "the pipeline gives no times of records (`latest` of the table)")


def _late(subject: Subject, name: str, until: float) -> Bools | None:
    """(N,) whether a unit has a record that late; None = nothing is known of the times."""
    latest = subject.prepared.latest(name)
    steps = None
    if name in subject.of_kind("sequence"):
        steps = _late_steps(subject.prepared.array(name), until, alone=latest is None)
    if latest is None:
        return steps
    return latest >= until if steps is None else (latest >= until) | steps


def _late_steps(array: ModalityArray, until: float, *, alone: bool) -> Bools:
    """(N,) whether a time step of the unit begins that late; `alone` = nothing else tells the times of its records."""
    assert array.offsets is not None
    column = [column.name for column in array.columns].index("hours") if array.hours is None else -1
    hours = array.values[:, column] if array.hours is None else array.hours
    # As a column they are float32, in which the last moment before the prediction may read as the prediction: `latest`
    # knows better. Where it is not given they count as late, as many records are of a full hour.
    late = hours > until if array.hours is None and not alone else hours >= until
    units = np.repeat(np.arange(len(array.present)), np.diff(array.offsets))
    return np.bincount(units[late], minlength=len(array.present)) > 0
