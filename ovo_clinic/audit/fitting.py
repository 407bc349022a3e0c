"""Checks that scalings, vocabularies and pretrained texts come from the training rows alone."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ovo_clinic import preprocessing, resources, runs
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.audit.finding import Finding, Remarks, Unchecked, listed
from ovo_clinic.audit.subject import Rows, Subject
from ovo_clinic.drift import value_rows
from ovo_clinic.preprocessing import Scaling
from ovo_clinic.tables import Vocabulary
from ovo_clinic.tabular import summarised

_TOLERANCE = 1e-6
_BLOCK = 256  # columns looked at together, so that memory stays at a fraction of the array


def scalings(subject: Subject) -> Remarks:
    """Stored scalings of trained runs that differ from the ones fitted anew on the training rows."""
    for name, scaling, used in _stored(subject.folders):
        array = _fitted_on(subject, name, scaling)
        if array is None:
            yield Unchecked(f"{name} ({used} runs)", "its encoder makes features of its own, which it fits on")
            continue
        others = _different(scaling, preprocessing.fit(array, subject.prepared.rows("train")))
        if others:
            everyone = np.flatnonzero(subject.in_parts)
            told = (
                ", but as one fitted on all rows" if not _different(scaling, preprocessing.fit(array, everyone)) else ""
            )
            yield Finding(
                what=f"the stored scaling of {used} trained run(s) is not the one of the training rows{told}: "
                f"{len(others)} of {len(scaling.columns)} columns differ",
                where=f"{name}: {listed(others)}",
                count=used,
                why="means, medians and deviations of the test part tell the model about it before it is tested",
                mend="fit on training rows only (`preprocessing.fit(array, prepared.rows('train'))`) and train anew",
            )


def _stored(folders: Sequence[Path]) -> list[tuple[str, Scaling, int]]:
    """(modality, scaling, runs that have it), each different one once: the runs of a study share theirs."""
    counts = Counter(
        (name, json.dumps(asdict(scaling)))
        for folder in folders
        for name, scaling in preprocessing.load(folder / "preprocessing.json").items()
        if scaling.columns  # of token ids there is none
    )
    return [(name, Scaling(**json.loads(text)), used) for (name, text), used in counts.items()]


def _fitted_on(subject: Subject, name: str, scaling: Scaling) -> ModalityArray | None:
    """The array that a scaling was fitted on: as prepared, or a sequence's summaries; None = made by an encoder."""
    if name in subject.of_kind("text") or name not in subject.prepared.modalities:
        return None
    array = subject.prepared.array(name)
    candidates = [array, summarised(array)] if array.kind == "sequence" else [array]
    named = (found for found in candidates if [column.name for column in found.columns] == scaling.columns)
    return next(named, None)


def _different(stored: Scaling, fitted: Scaling) -> list[str]:
    """Columns of which a scaling says something else."""
    pairs = [(getattr(stored, part), getattr(fitted, part)) for part in ("fill", "center", "scale")]
    close = [np.isclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE) for one, other in pairs]
    indicated = set(stored.indicators) ^ set(fitted.indicators)
    return [
        name
        for index, name in enumerate(stored.columns)
        if index in indicated or not all(part[index] for part in close)
    ]


def vocabularies(subject: Subject) -> Remarks:
    """Codes, variables and levels that the training units alone would not have made columns."""
    training = np.flatnonzero(subject.split == "train")
    for name in subject.of_kind("vector", "sequence"):
        array = subject.prepared.array(name)
        entry = subject.prepared.manifest["modalities"][name]
        rule, unseen = entry.get("kept_by"), entry.get("without_value", {})
        chosen = _chosen(array, by_rule=rule is not None)
        if not chosen.size:
            continue
        vocabulary = Vocabulary(**rule) if rule else Vocabulary(0)
        total = int(array.present[training].sum()) if vocabulary.of == "present" else training.size
        groups = [array.columns[index].group if rule else array.columns[index].name for index in chosen]
        counts: dict[str, int] = {}
        for group, units in zip(groups, _units_with(array, training, chosen), strict=True):
            counts[group] = max(units, counts.get(group, 0))
        least = vocabulary.least(total)
        short = [group for group, units in counts.items() if units + unseen.get(group, 0) < least]
        if short:
            yield Finding(
                what=f"{len(short)} of {len(counts)} codes, variables or levels are features though too few training "
                f"units have them (at least {least} should)",
                where=f"{name}: {listed(short)}",
                count=len(short),
                why="that they were chosen tells the model what is frequent in the test part",
                mend="let `prepare` choose them (a CodesTable, SummariesTable or SequenceTable, or a text column) "
                "from the training units",
            )


def _chosen(array: ModalityArray, *, by_rule: bool) -> Rows:
    """Places of the columns that were chosen on data: by a vocabulary's rule, or as levels of a category."""
    return np.array(
        [
            index
            for index, column in enumerate(array.columns)
            if (by_rule and column.group != "hours") or (not by_rule and column.name.startswith(f"{column.group}="))
        ],
        dtype=np.int64,
    )


def _units_with(array: ModalityArray, units: Rows, columns: Rows) -> npt.NDArray[np.int64]:
    """(columns,) how many of the units have something in each column: a 1, a number other than none."""
    rows = value_rows(array, units)
    owner = rows
    if array.offsets is not None:
        owner = np.searchsorted(array.offsets, rows, side="right") - 1
    counts = np.zeros(columns.size, dtype=np.int64)
    for start in range(0, columns.size, _BLOCK):
        block = columns[start : start + _BLOCK]
        values = array.values[np.ix_(rows, block)]
        binary = np.array([array.columns[index].role != "numeric" for index in block])
        there = np.where(binary, np.nan_to_num(values) != 0, ~np.isnan(values))
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        any_step = np.logical_or.reduceat(there, first, axis=0) if rows.size else there
        counts[start : start + block.size] = any_step.sum(axis=0)
    return counts


def pretrained_texts(subject: Subject) -> Remarks:
    """Checkpoints of trained runs that `pretrain-text` made of the training units of another split."""
    from ovo_clinic.encoders import checkpoints  # loads torch

    counts = Counter(found for folder in subject.folders for found in _checkpoints(folder))
    for (name, checkpoint), used in counts.items():
        origin = checkpoints.pretrained_on(checkpoint)
        if origin is None:
            continue
        if "split" not in origin:
            yield Unchecked(
                f"{name} ({used} runs)", "its checkpoint was pretrained on files; whose texts these are is open"
            )
        elif checkpoints.is_of_another_split(origin, subject.prepared):
            yield Finding(
                what=f"the checkpoint of {used} trained run(s) was pretrained on the training units of task "
                f"{origin['task']} in another split",
                where=f"encoder of {name}",
                count=used,
                why="among its texts may be those of this split's test patients, whom it has read before it is tested",
                mend="run `pretrain-text` with the same settings of the data and the split, and train anew",
            )


def _checkpoints(run: Path) -> Iterator[tuple[str, Path]]:
    """(modality, folder) of each text encoder with a checkpoint that a run used."""
    encoders = runs.read_result(run).get("config", {}).get("model", {}).get("encoders", {})
    for name, choice in encoders.items():
        if choice["name"] == "text":
            yield name, resources.absolute(choice["checkpoint"], f"model.encoders.{name}.checkpoint")
