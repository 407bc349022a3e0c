"""The costs that the One-Versus-Others paper prints, counted again, behind `ovo-clinic flops --paper`."""

import warnings
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from ovo_clinic import published
from ovo_clinic.attention.multihead import MultiheadAttention, merge_heads, split_heads
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.flops import count_macs, head_alone
from ovo_clinic.fusion.cross_attention import directed_pairs

HEADS = 4
"""Of every attention layer but OvO's; the number of heads changes no MACs there."""

EXPLANATION = (
    "The printed Delta-FLOPs can be reproduced to the last digit, but they are not what they are said to be. "
    "(1) They are multiply-accumulates, of which one is two FLOPs. "
    "(2) They are those of a batch of 16 patients, not of a sample. "
    "(3) The baselines pay for unusual layers. Self-attention takes all modalities of a patient for one token of width "
    "M D, so that its projections cost (M D)^2; and as torch reads a (batch, width) input as one sequence, patients of "
    "a batch attend to each other, in self- and cross-attention alike. "
    "(4) OvO is counted with one head. Its softmax then has one key and is constant: the head returns its input, "
    "whatever it has learned. "
    "Counted per sample, with each modality a token and keys and values projected once, self- and cross-attention cost "
    "the same within one per cent. The authors' OvO with several heads, which are its tokens, costs less because it "
    "has no query, key and value projections and not because it is linear in the modalities: with so few of them the "
    "quadratic term is small beside the projections. With the same tokens for all heads, and projections for all, as "
    "ours have them, OvO needs {low:.0f}-{high:.0f} % of self-attention's multiply-accumulates."
)


@dataclass(frozen=True)
class PaperCosts:
    """The paper's costs beside ours.

    Attributes:
        delta: one row per data set and head: the printed Delta-FLOPs, and ours counted in the same way.
        per_sample: one row per layout of the attention, one column per data set: true MACs of one sample, without an
            output layer.
        explanation: why the two differ.
    """

    delta: pd.DataFrame
    per_sample: pd.DataFrame
    explanation: str


def paper_costs() -> PaperCosts:
    """Counts the authors' heads as they did, and correct ones per sample."""
    rows = []
    for table in published.TABLES:
        found = {row.head: row.delta_flops for row in table.rows if row.head and row.delta_flops}
        for head, printed in found.items():
            rows.append(
                {"dataset": table.dataset, "head": head, "printed": printed, "counted": delta_macs(table, head)}
            )
    per_sample = pd.DataFrame(
        {table.dataset: per_sample_macs(table.modalities, table.dim) for table in published.TABLES}
    )
    share = 100 * per_sample.loc[_own("ovo")] / per_sample.loc[_own("self_attention")]
    explanation = EXPLANATION.format(low=share.min(), high=share.max())
    return PaperCosts(pd.DataFrame(rows), per_sample.rename_axis("layout").reset_index(), explanation)


def delta_macs(table: published.Table, head: str) -> int:
    """MACs of one of the authors' models for a whole batch, minus the concatenation model's.

    Both end with a linear output layer; encoders cancel out.
    """
    options = {"heads": 1} if head == published.OVO else {}
    macs, width = _head(head, table.modalities, table.dim, published.BATCH, **options)
    layers = [torch.nn.Linear(size, table.outputs) for size in (width, table.modalities * table.dim)]
    own, concat = (count_macs(layer, torch.zeros(published.BATCH, layer.in_features)).total for layer in layers)
    return macs + own - concat


def per_sample_macs(modalities: int, dim: int) -> dict[str, int]:
    """True MACs of one sample by layout of the attention, without an output layer: the paper's, then our heads."""
    x = torch.zeros(1, modalities, dim)
    concatenated, pairs = x.view(1, 1, -1), torch.zeros(modalities * (modalities - 1), 1, dim)
    layer, wide = _layer(dim), _layer(modalities * dim)
    found = {
        "self-attention, a modality a token": count_macs(layer, x, x).total,
        "self-attention, all modalities one token": count_macs(wide, concatenated, concatenated).total,
        "cross-attention, every pair alone": count_macs(layer, pairs, pairs).total,
        "cross-attention, each to all others": count_macs(_each_to_all_others, layer, x).total,
    }
    for heads in (1, 2, 4, 8):
        name = f"OvO, {heads} heads" if heads > 1 else "OvO, 1 head (the identity)"
        found[name] = _head(published.OVO, modalities, dim, 1, heads=heads)[0]
    options = {"tokens": 4, "heads": HEADS}
    tokens = _head("concat", modalities, dim, 1, tokens=4)[0]
    for name in ("self_attention", "cross_attention", "ovo"):
        found[_own(name)] = _head(name, modalities, dim, 1, **options)[0] - tokens
    return found


def _head(name: str, modalities: int, dim: int, batch: int, **options: int) -> tuple[int, int]:
    """(MACs of a head alone for a whole batch, width of its output)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that OvO with one head is the identity is said in the table
        head, tokens = head_alone(name, dim, modalities, batch, options)
    return count_macs(head, tokens).total, int(head.out_dim)  # type: ignore[arg-type]


def _own(name: str) -> str:
    return f"our {name}, 4 tokens a modality, minus concat"


def _layer(dim: int) -> MultiheadAttention:
    return MultiheadAttention(Softmax(HEADS, dim // HEADS), dim, HEADS)


def _each_to_all_others(layer: MultiheadAttention, x: Tensor) -> Tensor:
    """Each modality's token of x (B,M,D) queries those of the M-1 others; keys and values are projected once."""
    others = directed_pairs(x.shape[1])[1].view(x.shape[1], -1)
    q = split_heads(layer.query(x).flatten(0, 1)[:, None], layer.heads)
    k, v = (split_heads(project(x)[:, others].flatten(0, 1), layer.heads) for project in (layer.key, layer.value))
    out: Tensor = layer.out(merge_heads(layer.core(q, k, v)).view_as(x))
    return out
