"""What fusion costs: every routing x mechanism against modalities and tokens, and one-versus-others against its loop.

    python benchmarks/fusion.py [--out DIR] [--quick]

Writes fusion_costs.csv, one figure against the number of modalities and one against the tokens, and timings.csv. All
times are medians of forward and backward on one CPU thread, calls taking turns; peak memory is that of their tensors.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ovo_clinic.errors import UserError
from ovo_clinic.figures import COLOURS, DASHES
from ovo_clinic.flops import count_macs, head_alone
from ovo_clinic.measure import latencies, peak_memory
from ovo_clinic.registry import ATTENTION, FUSION
from ovo_clinic.types import parameter_count

DIM, BATCH = 64, 16
LOOP_MODALITIES, LEAST_SPEEDUP = 20, 3.0
GROWTH_BATCH, MOST_EXPONENT = 64, 1.15
MEASURES = {
    "macs": "MACs per sample",
    "parameters": "parameters",
    "milliseconds": "ms, forward + backward",
    "peak_mib": "peak memory, MiB",
}


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        modalities: numbers of them, at FEW_TOKENS tokens each.
        tokens: numbers of them per modality, with FEW_MODALITIES modalities.
        growth: numbers of modalities that exponents are fitted to.
        repeats: turns.
    """

    modalities: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    tokens: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128)
    growth: tuple[int, ...] = (4, 8, 16, 32, 64)
    repeats: int = 5


QUICK = Sizes(modalities=(2, 8), tokens=(2, 8), growth=(4, 16), repeats=2)
FEW_TOKENS = FEW_MODALITIES = 4


class AuthorsLoop(nn.Module):
    """One-versus-others as its authors formulate it: a loop in which the others' mean is computed for every modality.

    Args:
        weight: W (d,d).
        heads: slices of each vector.
    """

    def __init__(self, weight: Tensor, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.heads = heads

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """One (B,D) per modality -> (B,M*D)."""
        slices = [x.view(len(x), self.heads, -1) for x in inputs]
        outputs = []
        for i, main in enumerate(slices):
            others = [x for j, x in enumerate(slices) if j != i]
            mean = sum(others[1:], start=others[0]) / len(others)
            attention = (mean @ self.weight @ main.transpose(1, 2)).softmax(dim=-1)
            outputs.append(torch.bmm(attention, main).flatten(1))
        return torch.cat(outputs, dim=1)


def training_step(call: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Callable[[], object]:
    """Forward and backward to the given leaves."""

    def run() -> None:
        torch.autograd.grad(call().square().sum(), leaves)

    return run


def head_step(
    name: str, modalities: int, batch: int, options: dict[str, Any]
) -> tuple[nn.Module, Callable[[], object]]:
    """A head and its training step; gradients go to its parameters and to its input, as under encoders."""
    head, tokens = head_alone(name, DIM, modalities, batch, options)
    inputs = [given.values.requires_grad_() for given in tokens.values()]
    return head, training_step(lambda: head(tokens), [*head.parameters(), *inputs])


def accepted() -> list[tuple[str, str]]:
    """Every routing with every mechanism that it accepts."""
    found = []
    for name in FUSION.names():
        for mechanism in ATTENTION.names() if "attention" in FUSION.schema(name).model_fields else ():
            try:
                head_alone(name, DIM, 2, 1, {"attention": mechanism})
            except UserError:
                continue
            found.append((name, mechanism))
    return found


def cost_study(sizes: Sizes) -> pd.DataFrame:
    """One row per routing, mechanism and size."""
    points = [("modalities", number, number, FEW_TOKENS) for number in sizes.modalities]
    points += [("tokens", number, FEW_MODALITIES, number) for number in sizes.tokens]
    rows: list[dict[str, object]] = []
    for against, size, modalities, tokens in points:
        print(f"{against} {size}", flush=True)
        steps = []
        for name, mechanism in accepted():
            options = {"attention": mechanism, "tokens": tokens}
            counted, given = head_alone(name, DIM, modalities, 2, options)
            head, step = head_step(name, modalities, BATCH, options)
            steps.append(step)
            rows.append(
                {
                    "against": against,
                    "size": size,
                    "routing": name,
                    "mechanism": mechanism,
                    "macs": count_macs(counted, given).total // 2,
                    "parameters": parameter_count(head),
                    "peak_mib": peak_memory(step) / 2**20,
                }
            )
        times = latencies(steps, repeats=sizes.repeats, seconds=30)
        for row, seconds in zip(rows[-len(steps) :], times, strict=True):
            row["milliseconds"] = 1e3 * seconds
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, against: str) -> Figure:
    """A row of panels per routing, a column per measure, a line per mechanism; both axes logarithmic."""
    part = table[table["against"] == against]
    routings, mechanisms = sorted(part["routing"].unique()), sorted(part["mechanism"].unique())
    figure = Figure(figsize=(14, 3.1 * len(routings)), layout="constrained", dpi=130)
    panels = figure.subplots(len(routings), len(MEASURES), sharex=True, sharey="col", squeeze=False)
    for row, routing in zip(panels, routings, strict=True):
        for axes, (measure, title) in zip(row, MEASURES.items(), strict=True):
            axes.set(xscale="log", yscale="log", title=title if routing == routings[0] else "")
            axes.grid(color="0.92", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            for index, mechanism in enumerate(mechanisms):
                line = part[(part["routing"] == routing) & (part["mechanism"] == mechanism)].sort_values("size")
                style = {
                    "color": COLOURS[index % len(COLOURS)],
                    "linestyle": DASHES[index // len(COLOURS)],
                    "marker": "o",
                    "markersize": 2.5,
                }
                axes.plot(line["size"], line[measure], label=mechanism, linewidth=1.2, **style)
        row[0].set_ylabel(routing)
    numbers = sorted(part["size"].unique())
    for axes in panels[-1]:
        axes.set_xlabel("modalities" if against == "modalities" else "tokens per modality")
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.minorticks_off()
    complete = max(panels.flat, key=lambda axes: len(axes.get_lines()))
    handles, labels = complete.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    fixed = f"{FEW_TOKENS} tokens" if against == "modalities" else f"{FEW_MODALITIES} modalities"
    figure.suptitle(f"Fusion heads alone, D = {DIM}, B = {BATCH}, {fixed}, 4 heads, one CPU thread")
    return figure


def loop_timings(sizes: Sizes) -> pd.DataFrame:
    """`ovo_reference` against the authors' loop, on the same numbers."""
    head, tokens = head_alone("ovo_reference", DIM, LOOP_MODALITIES, BATCH, {})
    together = [given.values.requires_grad_() for given in tokens.values()]
    loop = AuthorsLoop(head.weight, head.heads)  # type: ignore[arg-type]
    apart = [x[:, 0].detach().clone().requires_grad_() for x in together]
    torch.testing.assert_close(head(tokens), loop(apart))
    steps = {
        "authors' loop": training_step(lambda: loop(apart), [loop.weight, *apart]),
        "ovo_reference": training_step(lambda: head(tokens), [*head.parameters(), *together]),
    }
    times = latencies(list(steps.values()), repeats=20 * sizes.repeats, seconds=60)
    rows = [(name, LOOP_MODALITIES, BATCH, 1e3 * took) for name, took in zip(steps, times, strict=True)]
    return pd.DataFrame(rows, columns=["head", "modalities", "batch", "milliseconds"])


def growth_timings(sizes: Sizes) -> pd.DataFrame:
    """The default heads against the number of modalities."""
    cases = [(name, number) for number in sizes.growth for name in ("ovo", "self_attention", "cross_attention")]
    steps = [head_step(name, number, GROWTH_BATCH, {})[1] for name, number in cases]
    times = latencies(steps, repeats=sizes.repeats + 2, seconds=180)
    rows = [(name, number, GROWTH_BATCH, 1e3 * took) for (name, number), took in zip(cases, times, strict=True)]
    return pd.DataFrame(rows, columns=["head", "modalities", "batch", "milliseconds"])


def exponent(table: pd.DataFrame) -> float:
    """Of the number of modalities in the time, by least squares of the logarithms."""
    slope, _ = np.polyfit(np.log(table["modalities"]), np.log(table["milliseconds"]), 1)
    return float(slope)


def print_timings(loop: pd.DataFrame, growth: pd.DataFrame) -> None:
    """The ratio and the exponents, beside what is wanted."""
    print(loop.round(2).to_string(index=False))
    slow, fast = loop["milliseconds"]
    print(f"ovo_reference is {slow / fast:.2f} times as fast as the authors' loop; at least {LEAST_SPEEDUP:g} wanted\n")
    wide = growth.pivot(index="head", columns="modalities", values="milliseconds").round(1)
    print(f"ms against the number of modalities, D = {DIM}, B = {GROWTH_BATCH}\n{wide.to_string()}")
    for head, rows in growth.groupby("head"):
        wanted = f"; at most {MOST_EXPONENT:g} wanted" if head == "ovo" else ""
        print(f"time of {head} grows with exponent {exponent(rows):.2f}{wanted}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("fusion_costs"), help="folder (default: fusion_costs)")
    parser.add_argument("--quick", action="store_true", help="few sizes, two turns: to see that it works")
    parser.add_argument("--timings-only", action="store_true", help="no cost study")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else Sizes()
    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    loop, growth = loop_timings(sizes), growth_timings(sizes)
    pd.concat([loop, growth]).to_csv(arguments.out / "timings.csv", index=False)
    print_timings(loop, growth)
    if arguments.timings_only:
        return
    table = cost_study(sizes)
    table.to_csv(arguments.out / "fusion_costs.csv", index=False)
    for against in ("modalities", "tokens"):
        draw(table, against).savefig(arguments.out / f"fusion_costs_{against}.png")
    print(f"tables and figures: {arguments.out}")


if __name__ == "__main__":
    main()
