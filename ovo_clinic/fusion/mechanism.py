"""Builds what attends inside a routing, and refuses what the routing cannot use."""

from dataclasses import dataclass
from typing import Any

from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION
from ovo_clinic.types import AttentionCore


@dataclass(frozen=True)
class Routing:
    """What queries what.

    Attributes:
        name: of the head, for messages.
        tokens: n, tokens per modality.
        keys: number of key tokens that a query sees.
        paired: True = query token i and key token i are the same token.
    """

    name: str
    tokens: int
    keys: int
    paired: bool


def build_core(routing: Routing, dim: int, heads: int, attention: str, precondition: bool) -> AttentionCore:
    """The attention core of a routing, preconditioned if asked.

    Args:
        routing: what queries what.
        dim: D, divisible by `heads`.
        heads: H.
        attention: a registered mechanism; one with fixed_length gets the number of keys as its option `length`.
        precondition: wraps the core.

    Raises:
        UserError: fewer than two tokens, a width that the heads do not divide, or a mechanism that does not fit.
    """
    if routing.tokens < 2:
        raise UserError(
            f"tokens: {routing.name} needs at least 2 and got {routing.tokens}; with one token the softmax has one key "
            "and the attention learns nothing"
        )
    check_heads(dim, heads)
    entry: Any = ATTENTION.get(attention, "attention")
    if entry.paired_tokens and not routing.paired:
        raise UserError(
            f"attention: '{attention}' pairs query token i with key token i, and in {routing.name} they are tokens of "
            "different modalities; use it with self_attention, or another mechanism here"
        )
    options = {"length": routing.keys} if entry.fixed_length else {}
    core: AttentionCore = ATTENTION.build(attention, heads, dim // heads, options=options)
    return Preconditioned(core) if precondition else core


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
