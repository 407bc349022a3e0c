"""k-fold cross-validation by patient: every model on the same folds, and tests that allow for their overlap.

Each fold is a data set of its own, prepared from the raw files: vocabularies, levels and scaling know its training
patients only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ovo_clinic import report, significance, statistics, study
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import Prepared
from ovo_clinic.study import Comparison

FILES = ("folds", "folds_p_values")
"""The tables of a study's folder that hold `FoldTables.scores` and `FoldTables.tests`."""

EXPLAINED = (
    "Percent, mean ± standard deviation over folds. p: corrected resampled t-test (Nadeau and Bengio), which allows "
    "for training sets that overlap, against the best of the others, Holm-corrected."
)


@dataclass(frozen=True)
class FoldTables:
    """The numbers of a cross-validation.

    Attributes:
        scores: one row per model and fold: model, kind, fold, units trained and tested on, the headline metrics.
        tests: per metric, each model against the best of the others over folds: the corrected resampled t-test.
    """

    scores: pd.DataFrame
    tests: pd.DataFrame

    def save(self, folder: Path) -> None:
        """Writes FILES as csv."""
        for name, table in zip(FILES, (self.scores, self.tests), strict=True):
            table.to_csv(folder / f"{name}.csv", index=False)

    def summary(self) -> pd.DataFrame:
        """One row per model: mean and standard deviation over folds of each metric."""
        metrics = [name for name in self.scores.columns if name not in _LABELS]
        grouped = self.scores.groupby(["model", "kind"], sort=False)[metrics]
        return grouped.mean().add_suffix("_mean").join(grouped.std().add_suffix("_sd")).reset_index()

    @property
    def title(self) -> str:
        """What was done, in words."""
        count = self.scores["fold"].nunique()
        return f"Cross-validation over {count} folds of the patients, each model trained once in each"

    def printable(self, classes: Sequence[str]) -> pd.DataFrame:
        """As text: `summary` in percent, and the corrected p-values; see EXPLAINED."""
        summary = self.summary()
        metrics = [column.removesuffix("_mean") for column in summary.columns if column.endswith("_mean")]
        lines = []
        for _, row in summary.iterrows():
            line = {"model": row["model"]}
            for metric in metrics:
                text = f"{100 * row[f'{metric}_mean']:.1f} ± {100 * row[f'{metric}_sd']:.1f}"
                line[report.metric_title(metric, classes)] = text
            for _, test in self.tests[self.tests["model"] == row["model"]].iterrows():
                p = f"{test['p_holm']:.3g} vs {test['against']}"
                line[f"p {report.metric_title(test['metric'], classes)}"] = p
            lines.append(line)
        return pd.DataFrame(lines).fillna("")


_LABELS = ("model", "kind", "fold", "train", "test")


def experiments(experiment: Experiment, folds: int) -> list[Experiment]:
    """The experiment on each fold in turn.

    Raises:
        UserError: a split that cannot be cut into folds, or settings that were chosen on patients of other folds.
    """
    if experiment.split_lists:
        raise UserError("--folds: cuts the patients anew, and --split-lists gives a published split; leave one out")
    if experiment.compare.tuned is not None:
        raise UserError(
            "--folds: the settings of --tuned were chosen on patients who are tested on in other folds; leave one out, "
            "or tune and compare fold by fold: split.folds=K split.fold=0 ..."
        )
    splits = [{**experiment.split, "folds": folds, "fold": fold} for fold in range(folds)]
    return [experiment.model_copy(update={"split": split}) for split in splits]


def prepared(
    experiment: Experiment, folds: int, prepare: Callable[[Experiment], Prepared]
) -> list[tuple[Experiment, Prepared]]:
    """The experiment on each fold in turn, with its data; mistakes show here, before anything is trained.

    Args:
        experiment: what the folds have in common.
        folds: k.
        prepare: prepares the data of one fold.

    Raises:
        UserError: as in `experiments`, or anything wrong with the data.
    """
    found = []
    for number, fold in enumerate(experiments(experiment, folds)):
        try:
            data = prepare(fold)
            study.arms(fold, data, fold.compare.fusion, fold.compare.unimodal)
            found.append((fold, data))
        except UserError as error:
            raise UserError(f"--folds: fold {number} of {folds}, prepared by itself: {error}") from None
    return found


def tables(comparisons: Sequence[Comparison]) -> FoldTables:
    """The numbers of the finished folds."""
    metrics = report.HEADLINE[comparisons[0].prepared.manifest["kind"]]
    rows = []
    for fold, comparison in enumerate(comparisons):
        sizes = {split: len(comparison.prepared.rows(split)) for split in ("train", "test")}
        for arm in comparison.arms:
            values = {metric: report.scores(comparison, arm.label, metric).mean() for metric in metrics}
            rows.append({"model": arm.label, "kind": arm.kind, "fold": fold, **sizes, **values})
    scores = pd.DataFrame(rows)
    heads = scores[scores["kind"] != "modality"]
    return FoldTables(scores, pd.concat([_tests(heads, metric) for metric in metrics[:2]], ignore_index=True))


def _tests(scores: pd.DataFrame, metric: str) -> pd.DataFrame:
    by_fold = scores.pivot(index="fold", columns="model", values=metric)
    sizes = scores.groupby("fold")[["train", "test"]].first()
    share = float((sizes["test"] / sizes["train"]).mean())
    rows = []
    for model in dict.fromkeys(scores["model"]):
        others = by_fold.drop(columns=model)
        if others.empty:
            continue
        best = str(others.mean().idxmax())
        found = statistics.corrected_resampled_t_test(by_fold[model], by_fold[best], share)
        rows.append(
            {
                "metric": metric,
                "model": model,
                "against": best,
                "difference": found.difference,
                "statistic": found.statistic,
                "p": found.p_value,
            }
        )
    table = pd.DataFrame(rows, columns=["metric", "model", "against", "difference", "statistic", "p"])
    pairs = list(zip(table["model"], table["against"], strict=True))
    return table.assign(p_holm=significance.corrected_by_pair(pairs, table["p"].tolist(), statistics.holm))
