"""What a study of encoders, or of preconditioned models, tells beside the scores: tables and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import figures, heat_maps, preconditioning, report, study, token_costs
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.study import Comparison

FILES = ("encoder_summary", "token_costs", "convergence", "condition_layers", "overhead", "heat_maps")
"""Tables that stand as csv in a study's folder where there is anything in them."""


def check(experiment: Experiment, prepared: Prepared) -> None:
    """Builds what `compare.sizes` asks for, as training may take hours.

    Raises:
        UserError: an encoder that does not take a size.
    """
    if experiment.compare.encoders and experiment.compare.sizes:
        (name,) = experiment.compare.encoders
        arms = study.arms(experiment, prepared, (), unimodal=False)
        token_costs.check(arms, study.modality_of(prepared, name), experiment.compare.sizes)


def tables(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Those of FILES that are not empty, written as csv into the study's folder.

    `encoder_summary` of `summary` and `token_costs` of `token_costs.table`, where `compare.sizes` asks for them;
    `convergence` and `overhead` of pairs of a
    plain and a preconditioned model, and `condition_layers`, see `preconditioning`; `heat_maps` of `heat_maps.table`,
    where `compare.heat_maps` asks for it.
    """
    found = {
        "convergence": preconditioning.convergence(comparison),
        "condition_layers": preconditioning.condition_numbers(comparison),
    }
    settings = comparison.arms[-1].experiment.compare
    if settings.encoders and settings.sizes:
        found["token_costs"] = token_costs.table(comparison, settings.sizes)
        found["encoder_summary"] = summary(comparison, found["token_costs"])
        found["overhead"] = preconditioning.overhead(comparison, found["token_costs"])
    if settings.heat_maps:
        found["heat_maps"] = heat_maps.table(comparison)
    found = {name: found[name] for name in FILES if name in found and not found[name].empty}
    for name, frame in found.items():
        frame.to_csv(comparison.folder / f"{name}.csv", index=False)
    return found


def summary(comparison: Comparison, costs: pd.DataFrame) -> pd.DataFrame:
    """How well each encoder does on the test units, beside what it costs at the size it was trained at.

    Args:
        comparison: of encoders.
        costs: of `token_costs.table`; where the trained size (of sequences the median length) is not among its sizes,
            the nearest one stands for it.

    Returns:
        One row per encoder: model; accuracy (binary and multiclass tasks; the class of the highest probability) and the
        task's first metric, each as _mean and _sd over seeds; then the row of `costs`.
    """
    metric = report.HEADLINE[comparison.prepared.manifest["kind"]][0]
    (name,) = comparison.arms[-1].experiment.compare.encoders
    trained = _trained_size(comparison.prepared, name)
    size = min(sorted(set(costs["size"])), key=lambda other: abs(other - trained))
    rows: list[dict[str, Any]] = []
    for label in comparison.heads:
        scores = {"accuracy": _accuracy(comparison, label), metric: report.scores(comparison, label, metric)}
        rows.append({"model": label})
        for measure, values in scores.items():
            if values is not None:
                sd = values.std(ddof=1) if values.size > 1 else np.nan
                rows[-1] |= {f"{measure}_mean": values.mean(), f"{measure}_sd": sd}
    return pd.DataFrame(rows).merge(costs[costs["size"] == size], on="model")


def _trained_size(prepared: Prepared, modality: str) -> int:
    """The side of the images, or the median number of time steps of the units that have any; see `compare.sizes`."""
    entry = prepared.manifest["modalities"][modality]
    if entry["kind"] != "sequence":
        return int(entry.get("size", 1))
    array = prepared.array(modality)
    assert array.offsets is not None
    return int(np.median(np.diff(array.offsets)[array.present]))


def _accuracy(comparison: Comparison, label: str) -> NDArray[np.float64] | None:
    """(S,) share of labelled test units whose most probable class is theirs, by seed; None for multilabel tasks."""
    if comparison.prepared.manifest["kind"] == "multilabel":
        return None
    probabilities, rows = report.predictions(comparison, label)
    target = np.asarray(comparison.prepared.target[rows], dtype=np.float64)
    known = ~np.isnan(target)
    predicted = probabilities >= 0.5 if probabilities.ndim == 2 else probabilities.argmax(axis=2)
    shares: NDArray[np.float64] = (predicted[:, known] == target[known]).mean(axis=1)
    return shares


def draw(comparison: Comparison, found: Mapping[str, pd.DataFrame]) -> dict[str, Path]:
    """Draws the figures of `tables` into the study's folder, as PNG; name -> file."""
    title = comparison.prepared.manifest["title"]
    drawn = {}
    if "token_costs" in found:
        drawn["token_costs"] = token_costs.figure(found["token_costs"], title)
    if "convergence" in found:
        drawn["convergence"] = preconditioning.figure(comparison, title)
    if "heat_maps" in found:
        drawn["heat_maps"] = heat_maps.figure(found["heat_maps"], title)
    return {name: figures.save(figure, comparison.folder / f"{name}.png") for name, figure in drawn.items()}


CAPTIONS: Mapping[str, str] = {
    "encoder_summary": "Encoders on the test units (percent, mean ± sd over seeds), and what they cost at that size",
    "macs": "MACs a unit, against the number of tokens",
    "units_per_second": "Units a second, forward pass, against the number of tokens",
    "train_units_per_second": "Units a second, training step, against the number of tokens",
    "train_peak_mib": "Peak memory of a training step of 8 units, MiB, against the number of tokens",
    "convergence": "Epochs that preconditioned models need to reach the final score of their plain ones, seed by seed",
    "condition_layers": "Condition numbers of attention outputs by layer, in the first, a middle and the last epoch "
    "(–: none has full rank)",
    "overhead": "Preconditioned against plain: ratios of the time and of the peak memory of a training step",
}


def printable(found: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables as text, by their name in CAPTIONS."""
    shown = {}
    if "encoder_summary" in found:
        shown["encoder_summary"] = _summary(found["encoder_summary"])
    if "token_costs" in found:
        costs = found["token_costs"]
        for column in (name for name in CAPTIONS if name in costs):
            shown[column] = _wide(costs, ["model"], "tokens", column)
    if "convergence" in found:
        shown["convergence"] = _convergence(found["convergence"])
    if "condition_layers" in found:
        layers = found["condition_layers"]
        epochs = sorted(set(layers["epoch"]))
        some = layers[layers["epoch"].isin({epochs[0], epochs[len(epochs) // 2], epochs[-1]})]
        shown["condition_layers"] = _wide(some, ["model", "epoch"], "layer", "condition_number")
    if "overhead" in found:
        shown["overhead"] = found["overhead"].round(2)
    return {name: frame.astype(str) for name, frame in shown.items()}


def _summary(frame: pd.DataFrame) -> pd.DataFrame:
    lines = {"model": frame["model"]}
    for column in (name for name in frame if str(name).endswith("_mean")):
        measure = str(column).removesuffix("_mean")
        pairs = zip(100 * frame[column], 100 * frame[f"{measure}_sd"], strict=True)
        lines[figures.words(measure)] = pd.Series(
            f"{mean:.1f}" if pd.isna(sd) else f"{mean:.1f} ± {sd:.1f}" for mean, sd in pairs
        )
    lines["tokens"] = frame["tokens"].astype(str)
    for title, column in (
        ("MACs", "macs"),
        ("parameters", "parameters"),
        ("units/s", "units_per_second"),
        ("units/s training", "train_units_per_second"),
    ):
        lines[title] = frame[column].map("{:,.0f}".format)
    return pd.DataFrame(lines | {"peak MiB training": frame["train_peak_mib"].map("{:.1f}".format)})


def _wide(frame: pd.DataFrame, index: list[str], columns: str, values: str) -> pd.DataFrame:
    """One row for each model in its order, a column for each number of tokens or layer; `–` where there is none."""
    wide = frame.pivot(index=index, columns=columns, values=values)
    wide = wide.loc[list(dict.fromkeys(frame.set_index(index).index))]
    text = wide.map(lambda value: "–" if pd.isna(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    return text.rename(columns=lambda place: f"{columns} {place}").reset_index()


def _convergence(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": frame["preconditioned"],
            "quantity": frame["quantity"].map(figures.words),
            "plain final": frame["plain_final"].map("{:.3f}".format),
            "plain epochs": frame["epochs"].map("{:.3g}".format),
            "epochs to reach it": ["–" if pd.isna(mean) else f"{mean:.3g}" for mean in frame["epochs_to_reach"]],
            "seeds that do": frame["reached"].astype(str) + " of " + frame["seeds"].astype(str),
            "epochs saved": ["–" if pd.isna(share) else f"{100 * share:.0f} %" for share in frame["saved"]],
        }
    )
