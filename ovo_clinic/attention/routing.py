"""Builds what attends inside a routing or an encoder, and refuses what it cannot use."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, Choice
from ovo_clinic.types import AttentionCore

SOFTMAX = Choice(name="softmax")
Eps = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Routing:
    """What queries what.

    In every routing there are as many query as key tokens, and token i of both fills the same learned place of
    tokens.py (ovo's mean of the others is taken place by place, too). So a mechanism that pairs tokens fits.

    Attributes:
        name: of the head, for messages.
        tokens: n, tokens per modality.
        keys: number of key tokens that a query sees.
        empty_queries: True = queries may all be zero though the modality is present.
    """

    name: str
    tokens: int
    keys: int
    empty_queries: bool = False


def build_core(
    routing: Routing, dim: int, heads: int, attention: Choice, precondition_eps: float | None
) -> AttentionCore:
    """The attention core of a routing, preconditioned if asked.

    Args:
        routing: what queries what.
        dim: D, divisible by `heads`.
        heads: H.
        attention: a registered mechanism; one with fixed_length gets the number of keys as its option `length`.
        precondition_eps: the least norm that a row is divided by; None = no preconditioning.

    Raises:
        UserError: fewer than two tokens, a width that the heads do not divide, or a mechanism that does not fit.
    """
    if routing.tokens < 2:
        raise UserError(
            f"tokens: {routing.name} needs at least 2 and got {routing.tokens}; with one token the softmax has one key "
            "and the attention learns nothing"
        )
    check_heads(dim, heads)
    entry: Any = ATTENTION.get(attention.name, "attention")
    reason = _misfit(routing, entry, attention)
    if reason:
        raise UserError(f"attention: '{attention.name}' {reason}")
    length = {"length": routing.keys} if entry.fixed_length else {}
    options = attention.options | length
    core: AttentionCore = ATTENTION.build(attention.name, heads, dim // heads, options=options, path="attention")
    return core if precondition_eps is None else Preconditioned(core, precondition_eps)


def _misfit(routing: Routing, entry: Any, attention: Choice) -> str | None:
    """Why a mechanism does not fit the routing, by its declarations; None = it does."""
    if getattr(entry, "needs_grid", False):
        return f"works on the grid of an image's patches and {routing.name} has none; use it in an image encoder"
    if getattr(entry, "unsafe", None):
        return f"is for comparison with published numbers only: {entry.unsafe}"
    if getattr(entry, "zero_query_gives_zero", False) and routing.empty_queries:
        return (
            f"multiplies the values by the pooled queries, and in {routing.name} these are zero for a unit with one "
            "modality, which would vanish; use it with self_attention or cross_attention, or another mechanism here"
        )
    if entry.fixed_length and "length" in attention.options:
        return f"is told its length by {routing.name} ({routing.keys}); leave `length` out"
    return None


def check_heads(dim: int, heads: int) -> None:
    """Checks that the heads divide the width.

    Raises:
        UserError: they do not.
    """
    if heads < 1 or dim % heads:
        raise UserError(f"heads: {heads} does not divide dim {dim}; choose heads and dim so that dim is a multiple")


def check_modalities(name: str, modalities: int) -> None:
    """Checks that a head that relates modalities to each other has two of them.

    Raises:
        UserError: fewer than two modalities.
    """
    if modalities < 2:
        raise UserError(
            f"fusion: {name} relates modalities to each other and got {modalities}; use concat for a single one"
        )
