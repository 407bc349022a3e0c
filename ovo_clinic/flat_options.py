"""The options of the `flat_files` pipeline: what the cohort and each modality of a private data set are made of."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from ovo_clinic.registry import Options

Column = Annotated[str, AfterValidator(str.lower)]
Statistic = Literal["last", "min", "max", "mean", "count"]


class Source(Options):
    """Where something stands: a table of the spec and, in further options, columns of it.

    Attributes:
        table: one of the spec's tables.
        unit: the column that names the unit of a row (default: the cohort's).
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    texts: ClassVar[tuple[str, ...]] = ()

    table: str
    unit: Column | None = None

    def named(self, options: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """(option, column) for every column that the options name."""
        for option in options:
            value = getattr(self, option)
            for column in [value] if isinstance(value, str) else value or []:
                yield option, column


class Cohort(Source):
    """One row a unit.

    Attributes:
        patient: the column that names the person (default: every unit is a person of its own).
        labels: the label columns, as in the task's `target`; a unit without any label is left out.
        classes: the labels' values in order (negative, positive); without it labels are 0 and 1.
        require: columns that have to be filled; units in which one is empty are left out.
        columns: further columns for `split.by`, `identifiers` and subgroups.
    """

    texts: ClassVar[tuple[str, ...]] = ("unit", "patient", "labels", "require", "columns")

    unit: Column
    patient: Column | None = None
    labels: list[Column] = Field(min_length=1)
    classes: list[str] = []
    require: list[Column] = []
    columns: list[Column] = []


class Vector(Source):
    """One row a unit, named columns; with none named, by their declared types, all but ids, labels and banned ones.

    Neither is then a feature what plays a part in any task of the spec: its labels, identifiers, what is split by.

    Attributes:
        numeric: measurements.
        binary: columns of 0 and 1 without empty cells.
        categorical: columns of levels; an empty cell is a level of its own.
    """

    numbers: ClassVar[tuple[str, ...]] = ("numeric", "binary")
    texts: ClassVar[tuple[str, ...]] = ("categorical",)

    kind: Literal["vector"]
    numeric: list[Column] = []
    binary: list[Column] = []
    categorical: list[Column] = []


class Records(Source):
    """Any number of rows a unit.

    Attributes:
        time: the column of the time since the index time; needed where there is a prediction time.
        time_unit: of that column.
        known_before: without a time column: every record was known before the prediction time.
        share: the least share of training units that must have a code or variable for it to become a feature.
    """

    numbers: ClassVar[tuple[str, ...]] = ("time",)

    time: Column | None = None
    time_unit: Literal["minutes", "hours", "days"] = "hours"
    known_before: bool = False
    share: float = Field(0.01, ge=0, le=1)


class Codes(Records):
    """Sets of codes, made into 0/1 features.

    Attributes:
        code: the column of codes.
    """

    texts: ClassVar[tuple[str, ...]] = ("code",)

    kind: Literal["codes"]
    code: Column


class Summaries(Records):
    """Repeated measurements, made into statistics per variable.

    Attributes:
        variable, value: the columns of names and numbers.
        statistics: `last` (needs `time`; values of the same time are averaged), `min`, `max`, `mean`, `count`.
    """

    numbers: ClassVar[tuple[str, ...]] = ("time", "value")
    texts: ClassVar[tuple[str, ...]] = ("variable",)

    kind: Literal["summaries"]
    variable: Column
    value: Column
    statistics: list[Statistic] = Field(["min", "max", "mean", "count"], min_length=1)

    @model_validator(mode="after")
    def _last_needs_time(self) -> "Summaries":
        if "last" in self.statistics and self.time is None:
            raise ValueError("statistics: 'last' needs a column of times; name it in `time`")
        return self


class Sequence(Records):
    """Time series; values of one variable at the same time are averaged.

    Attributes:
        time, variable, value: the columns.
    """

    numbers: ClassVar[tuple[str, ...]] = ("time", "value")
    texts: ClassVar[tuple[str, ...]] = ("variable",)

    kind: Literal["sequence"]
    time: Column
    variable: Column
    value: Column


Modality = Annotated[Vector | Codes | Summaries | Sequence, Field(discriminator="kind")]
