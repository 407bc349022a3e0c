"""ListOps against an evaluator of its own, which reads the text of an expression."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from ovo_clinic import experiment, spec
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare
from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import StepsTable, Tables
from ovo_clinic.verbs import compare

WORDS = {"minimum": "[MIN", "maximum": "[MAX", "median": "[MED", "sum_modulo": "[SM", "end": "]"}
WORDS |= {f"digit_{digit}": str(digit) for digit in range(10)}


def drawn(**options: int) -> Tables:
    dataset, path = spec.load("listops")
    result = spec.pipeline_function(dataset, "listops", path)(RawFolder({}, {}), dataset, **options)
    assert isinstance(result, Tables)
    return result


def texts(tables: Tables) -> list[str]:
    """Every expression as words, in the order of the units."""
    table = tables.modalities["expression"]
    assert isinstance(table, StepsTable)
    frame = table.frame.sort("unit_id", "hours")
    tokens = frame.drop("unit_id", "hours")
    one_hot = tokens.to_numpy()
    assert (one_hot.sum(axis=1) == 1).all()
    words = np.array([WORDS[name] for name in tokens.columns])[one_hot.argmax(axis=1)]
    starts = np.flatnonzero(frame["hours"].to_numpy() == 0)[1:]
    assert frame["unit_id"].unique().sort().to_list() == tables.cohort["unit_id"].to_list()
    return [" ".join(part) for part in np.split(words, starts)]


class Read(NamedTuple):
    value: int
    depth: int
    most_arguments: int


def evaluate(text: str) -> Read:
    """Reads an expression from the left with a stack of the operations that are open."""
    stack: list[tuple[str, list[Read]]] = [("", [])]
    for word in text.split():
        if word.startswith("["):
            stack.append((word, []))
        elif word == "]":
            operation, arguments = stack.pop()
            values = sorted(argument.value for argument in arguments)
            middle = len(values) // 2
            value = {
                "[MIN": values[0],
                "[MAX": values[-1],
                "[MED": values[middle] if len(values) % 2 else int((values[middle - 1] + values[middle]) / 2),
                "[SM": sum(values) % 10,
            }[operation]
            assert len(values) >= 2
            deepest = 1 + max(argument.depth for argument in arguments)
            most = max(len(values), *(argument.most_arguments for argument in arguments))
            stack[-1][1].append(Read(value, deepest, most))
        else:
            stack[-1][1].append(Read(int(word), 1, 0))
    (root,) = stack
    (whole,) = root[1]
    return whole


def test_the_evaluator_knows_the_published_examples() -> None:
    assert evaluate("[MAX 2 9 [MIN 4 7 ] 0 ]") == Read(9, 3, 4)
    assert evaluate("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]").value == 5
    assert evaluate("[MED 1 2 ]").value == 1 and evaluate("[SM 9 [SM 8 8 ] 1 ]").value == 6


@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 64, "max_length": 200},
        {"min_length": 4, "max_length": 60, "max_depth": 3, "max_arguments": 5},
        {"samples": 20, "min_length": 500, "max_length": 2000},
    ],
    ids=["short", "shallow", "published"],
)
def test_labels_lengths_depths_and_arguments(options: dict[str, int]) -> None:
    given = {"samples": 150, "max_depth": 10, "max_arguments": 10, **options}
    tables = drawn(**given)
    found = texts(tables)
    read = [evaluate(text) for text in found]
    assert [one.value for one in read] == tables.cohort["value"].to_list()
    assert len(set(found)) == given["samples"] == tables.cohort["patient_id"].n_unique()
    lengths = [len(text.split()) for text in found]
    assert lengths == tables.cohort["tokens"].to_list()
    assert given["min_length"] <= min(lengths) and max(lengths) <= given["max_length"]
    assert max(one.depth for one in read) <= given["max_depth"]
    assert max(one.most_arguments for one in read) <= given["max_arguments"]
    if options.get("max_depth") == 3:  # so many short ones reach every bound
        assert {one.depth for one in read} == {2, 3} and max(one.most_arguments for one in read) == 5


def test_operations_and_digits_are_drawn_evenly() -> None:
    counts = Counter(" ".join(texts(drawn(samples=400, min_length=20, max_length=80))).split())
    for words in (["[MIN", "[MAX", "[MED", "[SM"], [str(digit) for digit in range(10)]):
        expected = sum(counts[word] for word in words) / len(words)
        assert all(abs(counts[word] - expected) < 5 * expected**0.5 for word in words), counts
    assert counts["]"] == sum(counts[word] for word in ("[MIN", "[MAX", "[MED", "[SM"))


def test_the_same_seed_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests(home: str, seed: int) -> dict[str, str]:
        monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path / home))
        settings = ["data.samples=60", "data.min_length=10", "data.max_length=40", f"data.seed={seed}"]
        prepared = prepare(experiment.load("listops", settings).data_request(), {})
        assert prepared.manifest["units"] == {"train": 48, "validation": 6, "test": 6}
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in prepared.folder.iterdir()
            if path.suffix in (".npy", ".parquet")
        }

    first = digests("first", 3)
    assert "expression.npy" in first and digests("second", 3) == first
    assert digests("third", 4)["expression.npy"] != first["expression.npy"]


def test_lengths_that_hardly_occur_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="none is a new one of 64 to 200 tokens; set data.min_length") as caught:
        drawn(max_depth=2, max_arguments=3)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_study_of_preconditioned_nystrom_attention(home: Path) -> None:
    """The shipped study, small: every layer's condition numbers in every epoch, and time to the plain model's score."""
    settings = ["data.samples=120", "training.epochs=2", "compare.sizes=[64]"]
    study = compare("listops_preconditioned", settings, seeds=2, workers=1)
    rows = study.table.rows.set_index("model")
    assert list(rows.index) == ["softmax", "nystrom", "nystrom preconditioned"]
    assert rows["accuracy_mean"].between(0, 1).all() and (rows["seeds"] == 2).all()
    assert rows.loc["nystrom", "parameters"] == rows.loc["nystrom preconditioned", "parameters"]
    layers = pd.read_csv(study.comparison.folder / "condition_layers.csv")
    assert set(layers["model"]) == set(rows.index) and set(layers["epoch"]) == {1, 2} == set(layers["layer"])
    assert len(layers) == 3 * 2 * 2 and (layers["condition_number"] >= 1).all()
    for name, models in {"convergence": {"nystrom preconditioned"}, "token_costs": set(rows.index)}.items():
        table = pd.read_csv(study.comparison.folder / f"{name}.csv")
        assert any(set(table[column]) == models for column in table), table
    client = MlflowClient(study.tracking_uri)
    (experiment,) = (one for one in client.search_experiments() if one.name == "listops")
    runs = client.search_runs([experiment.experiment_id])
    seeds = [run for run in runs if run.data.tags["kind"] == "seed"]
    assert len(seeds) == 6 and all("best_test_accuracy" in run.data.metrics for run in seeds)
    assert sum(run.data.tags["kind"] == "study" for run in runs) == 1
