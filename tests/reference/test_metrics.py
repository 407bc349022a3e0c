"""mAUC and BCA against the TADPOLE challenge's own code (its results are the vectors) and against scikit-learn.

Every file of the vectors' folder is read, and every case of it must be used.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics

from ovo_clinic import metrics
from tests.conftest import REPOSITORY

FOLDER = Path(os.environ.get("OVO_CLINIC_VECTORS") or REPOSITORY.parent / "shared" / "vectors") / "metrics"
EXACT = 1e-12


def cases(kind: str) -> list[Any]:
    """The cases of one kind; none where the vectors are not there, which the first test reports."""
    files = sorted(FOLDER.glob("*.json"))
    return [
        pytest.param(case, id=f"{path.stem}-{case['name']}")
        for path in files
        for case in json.loads(path.read_text())[kind]
    ]


def arrays(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(case["probs"], dtype=float).reshape(-1, 3), np.array(case["labels"], dtype=float)


def test_every_case_has_a_test(vectors: Path) -> None:
    """A kind of case, or an expected value, that no test below uses would pass unseen."""
    assert vectors / "metrics" == FOLDER
    files = sorted(FOLDER.glob("*.json"))
    assert [path.name for path in files] == ["tadpole.json"]
    for content in (json.loads(path.read_text()) for path in files):
        lists = {name for name, value in content.items() if isinstance(value, list) and isinstance(value[0], dict)}
        assert lists == {"cases", "end_to_end_cases"}
        assert len(content["cases"]) == 14 and len(content["end_to_end_cases"]) == 2
        for case in content["cases"]:
            assert {name for name in case["expected"] if "tadpole_algorithms" not in name} == {
                "mauc_official",
                "a_values_official",
                "mauc_ovo_repo",
                "bca_official",
                "bca_ovo_repo",
                "confusion_counts",
                "mauc_midrank_ref",
            }


@pytest.mark.parametrize("case", cases("cases"))
@pytest.mark.parametrize("source", ["official", "ovo_repo"])
def test_official_values(case: dict[str, Any], source: str) -> None:
    p, y = arrays(case)
    assert p.argmax(axis=1).tolist() == case["pred"]
    mauc, bca = case["expected"][f"mauc_{source}"], case["expected"][f"bca_{source}"]
    if mauc["error"] is None:
        assert metrics.mauc(p, y, official_ties=True) == pytest.approx(mauc["value"], abs=EXACT)
    else:
        with pytest.raises(metrics.UndefinedMetric):
            metrics.mauc(p, y, official_ties=True)
    assert bca["error"] is None
    assert metrics.bca(p, y) == pytest.approx(bca["value"], abs=EXACT)


@pytest.mark.parametrize("case", cases("cases"))
def test_official_values_of_every_pair(case: dict[str, Any]) -> None:
    """A(i|j) + A(j|i), halved, is the mAUC of the two classes alone, their own scores being all that counts."""
    p, y = arrays(case)
    values = case["expected"]["a_values_official"]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        rows = (y == i) | (y == j)
        forth, back = values[f"A({i}|{j})"], values[f"A({j}|{i})"]
        if forth["error"] or back["error"]:
            with pytest.raises(metrics.UndefinedMetric):
                metrics.mauc(p[rows][:, [i, j]], (y[rows] == j).astype(float), official_ties=True)
        else:
            found = metrics.mauc(p[rows][:, [i, j]], (y[rows] == j).astype(float), official_ties=True)
            assert found == pytest.approx((forth["value"] + back["value"]) / 2, abs=EXACT)


@pytest.mark.parametrize("case", cases("cases"))
def test_bca_of_the_confusion_counts(case: dict[str, Any]) -> None:
    p, y = arrays(case)
    shares = []
    for counts in case["expected"]["confusion_counts"]:
        for found, missed in (("TP", "FN"), ("TN", "FP")):
            of = counts[found] + counts[missed]
            shares.append(counts[found] / of if of else 0.5)
    assert metrics.bca(p, y) == pytest.approx(np.mean(shares), abs=EXACT)


@pytest.mark.parametrize("case", cases("cases"))
def test_mid_ranks(case: dict[str, Any]) -> None:
    """scikit-learn's one-versus-one macro is defined where every class occurs."""
    p, y = arrays(case)
    expected = case["expected"]["mauc_midrank_ref"]
    if expected is None:
        assert np.unique(y).size < 3
        with pytest.raises(metrics.UndefinedMetric):
            metrics.mauc(p, y)
        return
    assert metrics.mauc(p, y) == pytest.approx(expected, abs=EXACT)
    peer = sklearn.metrics.roc_auc_score(y, p, multi_class="ovo", average="macro", labels=[0, 1, 2])
    assert metrics.mauc(p, y) == pytest.approx(peer, abs=EXACT)


@pytest.mark.parametrize("case", cases("end_to_end_cases"))
def test_relative_probabilities(case: dict[str, Any]) -> None:
    """Rows are divided by their mean before they are ranked; rows without a true diagnosis are left out."""
    p, y = np.array(case["relative_probs"]), np.array(case["labels"], dtype=float)
    p = p / p.mean(axis=1, keepdims=True)
    assert metrics.mauc(p, y, official_ties=True) == pytest.approx(case["expected"]["mauc_official"], abs=EXACT)
    assert metrics.bca(p, y) == pytest.approx(case["expected"]["bca_official"], abs=EXACT)
