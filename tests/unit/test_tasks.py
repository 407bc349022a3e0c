"""Losses, probabilities and metrics of the three kinds of task."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from ovo_clinic.errors import UserError
from ovo_clinic.registry import check
from ovo_clinic.spec import TaskSpec
from ovo_clinic.tasks import Binary, Multiclass, Multilabel, positive_weight, task_for

NAN = float("nan")


def test_binary_loss_is_the_mean_over_labelled_units() -> None:
    logits = torch.tensor([[0.3], [-1.2], [2.0]], dtype=torch.float64)
    p = 1 / (1 + np.exp([-0.3, 1.2]))
    expected = -(np.log(p[0]) + np.log(1 - p[1])) / 2
    target = torch.tensor([1.0, 0.0, NAN])
    assert Binary().loss(logits, target).item() == pytest.approx(expected, abs=1e-12)
    weighted = -(3 * np.log(p[0]) + np.log(1 - p[1])) / 2
    assert Binary(pos_weight=torch.tensor([3.0])).loss(logits, target).item() == pytest.approx(weighted, abs=1e-12)


def test_multilabel_loss_masks_entries_and_weights_labels() -> None:
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(5, 3)), rng.integers(0, 2, size=(5, 3)).astype(float)
    target[1, 2] = target[4, 0] = np.nan
    weight = np.array([1.0, 2.0, 5.0])
    p = 1 / (1 + np.exp(-logits))
    losses = -(weight * target * np.log(p) + (1 - target) * np.log(1 - p))
    task = Multilabel(["a", "b", "c"], torch.tensor(weight))
    loss = task.loss(torch.tensor(logits), torch.tensor(target))
    assert task.outputs == 3
    assert loss.item() == pytest.approx(np.nanmean(losses), abs=1e-12)


def test_multiclass_loss_is_the_mean_over_labelled_units() -> None:
    logits = np.random.default_rng(1).normal(size=(4, 3))
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    task = Multiclass(["CN", "MCI", "AD"])
    loss = task.loss(torch.tensor(logits), torch.tensor([2.0, NAN, 0.0, 1.0]))
    assert loss.item() == pytest.approx(-(log_p[0, 2] + log_p[2, 0] + log_p[3, 1]) / 3, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "shape"),
    [(Binary(), (4,)), (Multiclass(["a", "b", "c"]), (4,)), (Multilabel(["a", "b"]), (4, 2))],
    ids=["binary", "multiclass", "multilabel"],
)
def test_a_batch_without_labels_has_zero_loss_and_gradient(task: Binary | Multiclass | Multilabel, shape) -> None:
    logits = torch.randn(4, task.outputs, requires_grad=True)
    loss = task.loss(logits, torch.full(shape, NAN))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_predict_gives_float32_probabilities_from_bfloat16_logits() -> None:
    logits = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.bfloat16)
    binary = Binary().predict(logits[:, :1])
    assert binary.dtype == torch.float32
    assert binary.numpy() == pytest.approx([0.5, 1 / (1 + np.exp(-2))], abs=1e-6)
    multiclass = Multiclass(["a", "b"]).predict(logits)
    assert multiclass.numpy() == pytest.approx(np.array([[1, np.e], [np.exp(3), 1]]) / [[1 + np.e], [1 + np.exp(3)]])
    assert Multilabel(["a", "b"]).predict(logits).shape == (2, 2)
    assert Binary().loss(logits[:, :1], torch.tensor([0.0, 1.0])).dtype == torch.float32


def test_metric_names_and_monitor() -> None:
    p, y = np.array([0.9, 0.2, 0.6]), np.array([1.0, 0.0, 0.0])
    binary = Binary().metrics(p, y)
    assert list(binary) == ["auroc", "auprc", "auprc_negative", "prevalence", "brier", "log_loss"]
    assert binary["auroc"] == 1 and binary["prevalence"] == pytest.approx(1 / 3)
    multiclass = Multiclass(["a", "b"]).metrics(np.c_[p, 1 - p], 1 - y)
    assert multiclass["mauc"] == 1 and multiclass["bca"] == pytest.approx(0.75)
    assert multiclass["accuracy"] == pytest.approx(2 / 3)
    multilabel = Multilabel(["a", "b"]).metrics(np.c_[p, p], np.c_[y, np.ones(3)])
    assert multilabel["auroc_macro"] == 1 and multilabel["labels_skipped"] == 1
    assert multilabel["brier"] == pytest.approx((0.01 + 0.04 + 0.36 + 0.01 + 0.64 + 0.16) / 6)
    for task, found in ((Binary(), binary), (Multiclass(["a"]), multiclass), (Multilabel(["a"]), multilabel)):
        assert task.monitor in found


def test_multilabel_metrics_are_those_of_scikit_learn_and_groups_have_their_own() -> None:
    rng = np.random.default_rng(3)
    p, y = rng.random((300, 4)), (rng.random((300, 4)) < [0.2, 0.4, 0.5, 0.1]).astype(float)
    found = Multilabel("abcd", groups={"acute": ["a", "d"], "chronic": ["b"]}).metrics(p, y)
    for name, reference in (("auroc", roc_auc_score), ("auprc", average_precision_score)):
        for average in ("macro", "micro"):
            assert found[f"{name}_{average}"] == pytest.approx(reference(y, p, average=average), abs=1e-12)
        assert found[f"{name}_macro_acute"] == pytest.approx(reference(y[:, [0, 3]], p[:, [0, 3]]), abs=1e-12)
        assert found[f"{name}_macro_chronic"] == pytest.approx(reference(y[:, 1], p[:, 1]), abs=1e-12)
    y[:, 3] = 0  # a label of one class is left out of every average
    found = Multilabel("abcd", groups={"acute": ["a", "d"], "chronic": ["d"]}).metrics(p, y)
    assert found["auroc_macro"] == pytest.approx(roc_auc_score(y[:, :3], p[:, :3]), abs=1e-12)
    assert found["auroc_macro_acute"] == pytest.approx(roc_auc_score(y[:, 0], p[:, 0]), abs=1e-12)
    assert np.isnan(found["auroc_macro_chronic"]) and found["labels_skipped"] == 1


@pytest.mark.parametrize(
    ("kind", "groups", "message"),
    [
        ("multilabel", {"acute": ["pian"]}, "groups: acute: no label 'pian'; did you mean 'pain'"),
        ("binary", {"acute": ["pain"]}, "groups: acute: are for multilabel tasks"),
        ("multilabel", {"Acute!": ["pain"]}, "groups"),
        ("multilabel", {"acute": []}, "groups"),
    ],
)
def test_groups_hold_labels_of_a_multilabel_task(kind: str, groups: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(TaskSpec, {"title": "t", "kind": kind, "target": ["pain", "fever"], "groups": groups})


def test_one_label_is_no_multilabel_task() -> None:
    with pytest.raises(UserError, match="multilabel is for two labels or more; of one, say kind: binary"):
        check(TaskSpec, {"title": "t", "kind": "multilabel", "target": ["pain"]})


def test_one_class_validation_split_gives_nan_instead_of_ending_the_training() -> None:
    found = Binary().metrics(np.array([0.25, 0.5]), np.zeros(2))
    assert np.isnan(found["auroc"]) and np.isnan(found["auprc"])
    assert found["prevalence"] == 0 and found["brier"] == pytest.approx((0.0625 + 0.25) / 2)
    found = Multilabel(["a", "b"]).metrics(np.full((3, 2), 0.5), np.zeros((3, 2)))
    assert np.isnan(found["auroc_macro"]) and found["labels_skipped"] == 2


def test_positive_weight_is_negatives_per_positive() -> None:
    target = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, NAN], [0.0, 0.0, 0.0], [0.0, NAN, 0.0]])
    assert torch.equal(positive_weight(target), torch.tensor([3.0, 1.0, 2.0]))
    assert torch.equal(positive_weight(target[:, 0]), torch.tensor([3.0]))


def test_task_for() -> None:
    binary = task_for(TaskSpec(title="t", target=["died"], classes=["alive", "dead"]))
    assert isinstance(binary, Binary) and binary.classes == ("alive", "dead") and binary.monitor == "auroc"
    multiclass = task_for(TaskSpec(title="t", kind="multiclass", target=["dx"], classes=["CN", "MCI", "AD"]))
    assert isinstance(multiclass, Multiclass) and multiclass.outputs == 3
    multilabel = task_for(TaskSpec(title="t", kind="multilabel", target=["a", "b"], groups={"late": ["b"]}))
    assert isinstance(multilabel, Multilabel) and multilabel.outputs == 2 and multilabel.labels == ("a", "b")
    assert multilabel.groups == {"late": [1]}


@pytest.mark.parametrize(
    ("spec", "pos_weight", "message"),
    [
        (TaskSpec(title="t", target=["a", "b"]), None, "one target column, not 2"),
        (TaskSpec(title="t", target=["a"], classes=["x"]), None, "a binary task has two"),
        (TaskSpec(title="t", kind="multiclass", target=["a"]), None, "needs the names of its classes"),
        (TaskSpec(title="t", kind="multiclass", target=["a"], classes=["x", "y"]), torch.ones(1), "pos_weight"),
    ],
)
def test_task_for_refuses_what_does_not_fit(spec: TaskSpec, pos_weight, message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_for(spec, pos_weight)
