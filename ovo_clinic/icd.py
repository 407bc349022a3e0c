"""Groups of ICD diagnosis codes: which labels a code stands for, with a fallback for codes newer than the list."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

_SHORTEST = 3
Labels = frozenset[str]


@dataclass(frozen=True)
class CodeList:
    """Labels by code, of one version of the ICD.

    Attributes:
        labels: of each listed code; an empty set says that the code stands for none.
        fallback: whether a code that is not listed takes the labels of its nearest listed relative.
    """

    labels: Mapping[str, Labels]
    fallback: bool = False

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[str, str]], overrides: Iterable[tuple[str, str]] = (), fallback: bool = False
    ) -> "CodeList":
        """From (code, label) pairs.

        Args:
            pairs: one label of a code each.
            overrides: pairs that replace all labels of their codes; an empty label = none.
            fallback: see the class.
        """
        return cls({**_gathered(pairs), **_gathered(overrides)}, fallback)

    def labels_of(self, code: str) -> Labels:
        """The labels of a code.

        With the fallback, an unlisted code is shortened one character at a time, to three at least, until it is listed;
        failing that, it takes the labels of the listed codes that extend it where these all have the same.
        """
        if not self.fallback or code in self.labels:
            return self.labels.get(code, frozenset())
        for length in range(len(code) - 1, _SHORTEST - 1, -1):
            if code[:length] in self.labels:
                return self.labels[code[:length]]
        extensions = {labels for listed, labels in self.labels.items() if listed.startswith(code)}
        return extensions.pop() if len(extensions) == 1 else frozenset()


def _gathered(pairs: Iterable[tuple[str, str]]) -> dict[str, Labels]:
    gathered: defaultdict[str, set[str]] = defaultdict(set)
    for code, label in pairs:
        gathered[code] |= {label} - {""}
    return {code: frozenset(labels) for code, labels in gathered.items()}


def label_table(
    diagnoses: pl.DataFrame, lists: Mapping[int, CodeList], names: Sequence[str], key: str = "hadm_id"
) -> pl.DataFrame:
    """0/1 columns of which labels each admission's diagnoses stand for.

    Args:
        diagnoses: `key`, icd_code (String), icd_version (Int64), in any order; blanks around codes do not matter.
        lists: by version; codes of other versions stand for nothing.
        names: of all labels, in the order of the columns.
        key: the column that names an admission.

    Returns:
        One row for each value of `key`, sorted, and one Int8 column per label.
    """
    given = diagnoses.select(key, code=pl.col("icd_code").str.strip_chars(), version="icd_version")
    codes = given.select("code", "version").unique().drop_nulls()
    meaning = codes.with_columns(
        label=pl.Series(
            [
                sorted(lists[version].labels_of(code)) if version in lists else []
                for code, version in codes.select("code", "version").iter_rows()
            ],
            dtype=pl.List(pl.String),
        )
    ).explode("label", empty_as_null=False)
    pairs = given.join(meaning, on=["code", "version"], how="inner").select(key, "label").unique()
    keys = given.select(key).unique().sort(key)
    return keys.with_columns(
        pl.col(key).is_in(pairs.filter(pl.col("label") == name)[key].implode()).cast(pl.Int8).alias(name)
        for name in names
    )
