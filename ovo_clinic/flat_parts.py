"""Guesses which column of a private data set's flat files names the unit, the patient and the label.

What is not clear is asked for, never assumed: a wrong patient column would put one person on both sides of the split.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ovo_clinic.errors import UserError
from ovo_clinic.flat_inspection import ColumnFacts, FlatFile

# All are searched in a column's `words`, so that the `id` of `covid` or the `pid` of `lipid` is none.
ID = re.compile(
    r"(^|_)(id|ids|mrn|key|no|nr|uid|uuid|guid|pid)$"
    r"|(patient|subject|person|participant|stay|visit|encounter|admission|hadm|case|study|record)id$"
)
_NUMBER = "(id|no|nr|num|number|nbr|key|code|uid|identifier|pseudonym)"
_PERSON = re.compile(
    rf"(^|_)(patient|subject|person|participant|proband|individual)s?(_?{_NUMBER})?$"
    rf"|(^|_)(pat|pt|subj|member|client|nhs|chi|medical_record|mr)_?{_NUMBER}$"
    r"|(^|_)((unique)?pid|u?subjid|empi|mpi|mrn|rid|ssn|upi)$"
)
_PERHAPS = re.compile(rf"(^|_)(case|study|record|hospital)_?{_NUMBER}$")  # of a person, or of one stay
_LABEL = re.compile(r"(^|_)(label|target|outcome|died|death|dead|deceased|mortality|expired|exitus)(_|$)")
OUTCOME = re.compile(
    r"outcome|(?<!stu)died|death|dead|decease|mortality|expire|surviv|discharge|readmi|disposition|exitus|fatal|lethal"
    r"|autops|hospice|vital_?status|length_?of_?stay|(^|_)(icu_?|hosp_?|hospital_?)?los(_|$)|(^|_)do_?d(_|$)"
    r"|(^|_)alive(_|$)|(^|_)vent[a-z]*_?(free_?)?(days|hours|duration)|(icu|hosp|hospital|stay|_free)_?days"
    r"|days_(in|of)_(icu|hosp|stay|vent)"
)
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Wishes:
    """What the user said; see `new_dataset`."""

    unit: str | None = None
    patient: str | None = None
    label: str | None = None
    classes: tuple[str, ...] = ()
    prediction_hours: float | None = None


@dataclass(frozen=True)
class Parts:
    """Which column plays which part.

    Attributes:
        cohort: the file with the label.
        unit, patient, label: columns of it.
        banned: columns of any file that look as if they stated the outcome.
    """

    cohort: FlatFile
    unit: str
    patient: str
    label: str
    banned: list[str]


def shown(names: Iterable[str], most: int = _MOST_SHOWN) -> str:
    """Names of columns in one line of bounded length."""
    listed = [" ".join(name.split())[:60] or "(no name)" for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "none") + more


def find(files: Sequence[FlatFile], wishes: Wishes) -> Parts:
    """Settles which column plays which part.

    Raises:
        UserError: something is not clear from names and values; the message names the option and the candidates.
    """
    cohort, label = _label(files, wishes)
    unit = _unit(files, cohort, label, wishes)
    patient = _patient(cohort, unit, label, wishes)
    column = cohort.columns[label]
    if not (column.zero_one and column.distinct == 2) and column.distinct != len(wishes.classes):
        raise UserError(
            f"--classes: column '{label}' of {cohort.path.name} has {column.distinct} different values, not just 0 and "
            "1; list them in order, the negative one first"
        )
    for name in (unit, patient, label):
        if garbled := cohort.columns[name].not_utf8:
            raise UserError(
                f"{cohort.path}: column '{name}' holds {garbled} cell(s) that are not UTF-8 text; save the file as "
                "CSV (UTF-8)"
            )
    outcomes = {name for file in files for name, found in file.columns.items() if OUTCOME.search(found.words)}
    return Parts(cohort, unit, patient, label, sorted(outcomes - {unit, patient, label}))


def _label(files: Sequence[FlatFile], wishes: Wishes) -> tuple[FlatFile, str]:
    if wishes.label is not None:
        found = [(file, wishes.label.lower()) for file in files if wishes.label.lower() in file.columns]
    else:
        found = [
            (file, name)
            for file in files
            for name, column in file.columns.items()
            if _LABEL.search(column.words) and 2 <= column.distinct <= 10
        ]
    if len(found) == 1:
        return found[0]
    listed = found or [(file, name) for file in files for name, column in file.columns.items() if column.distinct == 2]
    candidates = shown(f"'{name}' of {file.path.name}" for file, name in listed)
    raise UserError(
        f"--label: {'no column' if not found else 'more than one column'} is clearly the one to predict; "
        f"candidates: {candidates}"
    )


def _unit(files: Sequence[FlatFile], cohort: FlatFile, label: str, wishes: Wishes) -> str:
    shared = [name for name in cohort.columns if name != label and all(name in file.columns for file in files)]
    if wishes.unit is not None and wishes.unit.lower() not in shared:
        raise UserError(f"--unit: '{wishes.unit}' is not a column of every file; these are: {shown(shared)}")
    keys = [wishes.unit.lower()] if wishes.unit else shared
    found = [name for name in keys if cohort.unique(name) and cohort.columns[name].type != "number"]
    named = [name for name in found if ID.search(cohort.columns[name].words)]
    if len(named or found) == 1:
        return (named or found)[0]
    needed = f"{cohort.path.name}, which holds the label"
    likely = keys if wishes.unit else [name for name in keys if ID.search(cohort.columns[name].words)]
    if not found and likely:
        reasons = "; ".join(f"'{name}' {_not_a_key(cohort.columns[name])}" for name in likely[:3])
        raise UserError(f"--unit: {reasons}; one row a unit is needed in {needed}: correct it, or name another column")
    raise UserError(
        f"--unit: the column that names the unit should be in every file and have no value twice in {needed}; "
        f"candidates: {shown(found)}"
    )


def _not_a_key(column: ColumnFacts) -> str:
    if column.type == "number":
        return "holds decimal numbers"
    faults = {"value(s) twice": column.filled - column.distinct, "blank cell(s)": column.rows - column.filled}
    return "has " + " and ".join(f"{count} {fault}" for fault, count in faults.items() if count)


def _patient(cohort: FlatFile, unit: str, label: str, wishes: Wishes) -> str:
    columns, file = cohort.columns, cohort.path.name
    if wishes.patient is not None:
        name = wishes.patient.lower()
        if name not in columns:
            raise UserError(f"--patient: {file} has no column '{wishes.patient}'; it has {shown(columns)}")
        if columns[name].type == "number":
            raise UserError(f"--patient: column '{name}' of {file} holds decimal numbers, not ids; name another one")
        return name
    possible = [name for name, column in columns.items() if column.type != "number" and column.distinct > 1]
    people = [name for name in possible if _PERSON.search(columns[name].words) and name != label]
    found = [name for name in people if name != unit] or people  # the unit itself, where it is named as a person
    found = found or [name for name in possible if _PERHAPS.search(columns[name].words) and name not in (unit, label)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"--patient: more than one column of {file} names a person: {shown(found)}")
    many = [name for name in possible if columns[name].distinct > 2 and name not in (unit, label)]
    likely = [name for name in many if ID.search(columns[name].words)] or many
    raise UserError(
        f"--patient: no column of {file} is clearly the one that names a person; candidates: {shown(likely)}; "
        f"give --patient COLUMN, or --patient {unit} where each row is a person of its own"
    )
