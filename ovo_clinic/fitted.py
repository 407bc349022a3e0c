"""A fitted classical baseline, and the arrays that are kept of it: a file without pickle, for any later version."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from ovo_clinic.tabular import Arrays, Baseline, Classifier, Floats

Probabilities = npt.NDArray[np.float64]

_CLASSES = "classes"


@dataclass(frozen=True)
class Constant:
    """The classifier of a label that has one class in training.

    Attributes:
        classes_: (1,).
    """

    classes_: npt.NDArray[np.int64]

    def predict_proba(self, x: Floats) -> Probabilities:
        """(N,1) of ones."""
        return np.ones((len(x), 1))


@dataclass(frozen=True)
class Fitted:
    """One classifier per label.

    Attributes:
        kind: of the task.
        classes: number of them.
        classifiers: one, or one per label of a multilabel task.
    """

    kind: str
    classes: int
    classifiers: Sequence[Classifier]

    def probabilities(self, x: Floats) -> Probabilities:
        """x (N,F) -> (N,) for a binary task, else (N,K); a class that no training unit has gets 0."""
        found = []
        for classifier in self.classifiers:
            values = np.zeros((len(x), self.classes))
            values[:, classifier.classes_] = classifier.predict_proba(x)
            found.append(values)
        if self.kind == "multiclass":
            return found[0]
        return found[0][:, 1] if self.kind == "binary" else np.column_stack([values[:, 1] for values in found])

    def costs(self, baseline: Baseline) -> dict[str, int]:
        """Sums over labels; a label with one class in training has a constant and no classifier."""
        costs = [baseline.costs(classifier) for classifier in self.classifiers if len(classifier.classes_) > 1]
        return {name: sum(cost[name] for cost in costs) for name in (costs[0] if costs else {})}

    def save(self, baseline: Baseline, path: Path) -> None:
        """Writes the classifiers' arrays, those of the i-th under `i.NAME`."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for place, classifier in enumerate(self.classifiers):
            own = {_CLASSES: np.asarray(classifier.classes_, dtype=np.int64)}
            own |= baseline.arrays(classifier) if len(classifier.classes_) > 1 else {}
            arrays |= {f"{place}.{name}": np.ascontiguousarray(values) for name, values in own.items()}
        save_file(arrays, path)


def number_of_classes(kind: str, classes: Sequence[str]) -> int:
    """Width of what each classifier gives."""
    return len(classes) if kind == "multiclass" else 2


def load(baseline: Baseline, kind: str, classes: int, path: Path) -> Fitted:
    """Reads what `Fitted.save` wrote.

    Args:
        baseline: that was fitted.
        kind: of the task.
        classes: from `number_of_classes`.
        path: of the file.
    """
    by_place: dict[int, Arrays] = {}
    for key, values in load_file(path).items():
        place, name = key.split(".", 1)
        by_place.setdefault(int(place), {})[name] = values
    return Fitted(kind, classes, [_restored(baseline, by_place[place]) for place in sorted(by_place)])


def _restored(baseline: Baseline, arrays: Arrays) -> Classifier:
    classes = arrays[_CLASSES]
    own = {name: values for name, values in arrays.items() if name != _CLASSES}
    return baseline.restored(classes, own) if len(classes) > 1 else Constant(classes)
