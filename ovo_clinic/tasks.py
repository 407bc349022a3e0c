"""What is predicted: Binary, Multiclass and Multilabel turn logits into a loss, probabilities and metrics.

Targets follow `Batch.target`: NaN = not labelled. A unit without a label adds nothing to the loss, and a batch without
any gives a loss of 0 whose gradient is 0.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ovo_clinic import metrics
from ovo_clinic.errors import UserError
from ovo_clinic.spec import TaskSpec
from ovo_clinic.types import Task

IGNORED_CLASS = -100


class Binary:
    """One outcome, present or not.

    Args:
        classes: names of the negative and the positive class.
        pos_weight: (1,) or scalar, weight of the positives in the loss; shifts the calibration of the probabilities.
    """

    outputs = 1
    monitor = "auroc"

    def __init__(self, classes: Sequence[str] = ("negative", "positive"), pos_weight: Tensor | None = None) -> None:
        self.classes = tuple(classes)
        self.pos_weight = pos_weight

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy over labelled units; logits (B,1), target (B,)."""
        return _masked_cross_entropy(logits.squeeze(1), target, self.pos_weight)

    def predict(self, logits: Tensor) -> Tensor:
        """Probability of the positive class, (B,), in at least float32."""
        return _at_least_float32(logits).sigmoid().squeeze(1)

    def metrics(self, probabilities: Any, target: Any) -> dict[str, float]:
        """AUROC, AUPRC of the positive and of the negative class, prevalence, brier, log_loss; NaN where undefined."""
        return _evaluated(
            {
                "auroc": metrics.auroc,
                "auprc": metrics.auprc,
                "auprc_negative": metrics.auprc_negative,
                "prevalence": metrics.prevalence,
                "brier": metrics.brier,
                "log_loss": metrics.log_loss,
            },
            probabilities,
            target,
        )


class Multiclass:
    """One of several classes.

    Args:
        classes: their names; the target is an index into them.
    """

    monitor = "mauc"

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self.outputs = len(self.classes)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy over labelled units; logits (B,K), target (B,) class index."""
        labelled = ~target.isnan()
        index = target.nan_to_num(IGNORED_CLASS).long()
        total = functional.cross_entropy(_at_least_float32(logits), index, ignore_index=IGNORED_CLASS, reduction="sum")
        return total / labelled.sum().clamp(min=1)

    def predict(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes, (B,K), in at least float32."""
        return _at_least_float32(logits).softmax(dim=1)

    def metrics(self, probabilities: Any, target: Any) -> dict[str, float]:
        """mauc (Hand and Till), bca (the TADPOLE challenge's), accuracy, log_loss; NaN where undefined."""
        return _evaluated(
            {
                "mauc": metrics.mauc,
                "bca": metrics.bca,
                "accuracy": metrics.accuracy,
                "log_loss": metrics.log_loss,
            },
            probabilities,
            target,
        )


class Multilabel:
    """Several outcomes, each present or not, each labelled or not.

    Args:
        labels: their names.
        pos_weight: (K,), weight of each label's positives in the loss; shifts the calibration of the probabilities.
        groups: of labels, by name, which get macro averages of their own.
    """

    monitor = "auroc_macro"

    def __init__(
        self,
        labels: Sequence[str],
        pos_weight: Tensor | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.labels = tuple(labels)
        self.outputs = len(self.labels)
        self.pos_weight = pos_weight
        self.groups = {
            name: [self.labels.index(label) for label in members] for name, members in (groups or {}).items()
        }

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy over labelled entries; logits and target (B,K)."""
        return _masked_cross_entropy(logits, target, self.pos_weight)

    def predict(self, logits: Tensor) -> Tensor:
        """Probability of each label, (B,K), in at least float32."""
        return _at_least_float32(logits).sigmoid()

    def metrics(self, probabilities: Any, target: Any) -> dict[str, float]:
        """AUROC and AUPRC, each _macro (over labels that have both classes) and _micro, brier, labels_skipped.

        `labels_skipped` counts the labels with one class only; a metric is NaN where undefined. A group's macro
        averages are auroc_macro_GROUP and auprc_macro_GROUP.
        """
        pooled = {"auroc_micro": metrics.auroc, "auprc_micro": metrics.auprc, "brier": metrics.brier}
        scores = {}
        for name, metric in {"auroc": metrics.auroc, "auprc": metrics.auprc}.items():
            each = metrics.per_label(metric, probabilities, target)
            scores[f"{name}_macro"] = metrics.mean_of_defined(each)
            scores |= {
                f"{name}_macro_{group}": metrics.mean_of_defined(each[own]) for group, own in self.groups.items()
            }
        scores |= _evaluated(
            {name: partial(metrics.micro, metric) for name, metric in pooled.items()}, probabilities, target
        )
        return {**scores, "labels_skipped": metrics.one_class_labels(target)}


def task_for(spec: TaskSpec, pos_weight: Tensor | None = None) -> Task:
    """The task that a spec describes.

    Args:
        spec: of the task.
        pos_weight: weight of the positives in the loss, for binary and multilabel tasks.

    Raises:
        UserError: class names or target columns that do not fit the kind of task, or a weight that does not.
    """
    if spec.kind != "multilabel" and len(spec.target) != 1:
        raise UserError(f"target: a {spec.kind} task has one target column, not {len(spec.target)}: {spec.target}")
    if spec.kind == "multilabel":
        return Multilabel(spec.target, pos_weight, spec.groups)
    if spec.kind == "multiclass":
        if len(spec.classes) < 2:
            raise UserError("classes: a multiclass task needs the names of its classes, in the target's order")
        if pos_weight is not None:
            raise UserError("pos_weight: is for binary and multilabel tasks; this task is multiclass")
        return Multiclass(spec.classes)
    if spec.classes and len(spec.classes) != 2:
        raise UserError(f"classes: a binary task has two (negative, positive), not {len(spec.classes)}: {spec.classes}")
    return Binary(spec.classes or ("negative", "positive"), pos_weight)


def positive_weight(target: Tensor) -> Tensor:
    """Negatives per positive among labelled entries, (K,) float32, of training targets (B,) or (B,K).

    A label without a positive, or without a negative, keeps the weight 1.
    """
    columns = target.unsqueeze(1) if target.ndim == 1 else target
    positives, negatives = (columns == 1).sum(dim=0), (columns == 0).sum(dim=0)
    usable = (positives > 0) & (negatives > 0)
    return torch.where(usable, negatives / positives.clamp(min=1), 1.0).float()


def _masked_cross_entropy(logits: Tensor, target: Tensor, pos_weight: Tensor | None) -> Tensor:
    labelled = ~target.isnan()
    logits = _at_least_float32(logits)
    losses = functional.binary_cross_entropy_with_logits(
        logits,
        target.nan_to_num(0.0).to(logits.dtype),
        pos_weight=None if pos_weight is None else pos_weight.to(logits),
        reduction="none",
    )
    return (losses * labelled).sum() / labelled.sum().clamp(min=1)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _evaluated(chosen: dict[str, metrics.Metric], probabilities: Any, target: Any) -> dict[str, float]:
    return {name: metrics.or_nan(metric, probabilities, target) for name, metric in chosen.items()}
