"""The mechanisms inside transformers models (BERT, DistilBERT, ViT, DeiT, Swin, ...).

`use_attention(model, name)` switches a loaded model to one of these names:

    preconditioned                      softmax attention with preconditioned rows
    ovo_softmax                         softmax attention in which a row without a valid key is 0
    ovo_<mechanism>                     any mechanism that has nothing to learn: ovo_efficient, ovo_nystrom, ...
    ovo_<mechanism>_preconditioned      the same, preconditioned

A mechanism with parameters has no name here: the interface hands over queries, keys and values and has no place for
weights. What is random (Performer's features) is drawn from a fixed seed, so that a saved model stays the same model.
transformers is imported when a name is registered, not before.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from ovo_clinic.attention.precondition import Preconditioned, unit_rows
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, suggest
from ovo_clinic.types import AttentionCore

OWN = ("eager", "sdpa")
"""transformers' own implementations that `use_attention` takes, too."""

_ALTERATIONS = ("position_bias", "s_aux", "softcap")
"""Arguments by which some models alter the scores; ignoring one would give other numbers without a word."""


class Implementation(NamedTuple):
    """What a name stands for."""

    mechanism: str
    precondition: bool


def implementations() -> dict[str, Implementation]:
    """Every name that `register` enters."""
    found = {"preconditioned": Implementation("softmax", True), "ovo_softmax": Implementation("softmax", False)}
    for mechanism in ATTENTION.names():
        if mechanism != "softmax" and _has_nothing_to_learn(mechanism):
            found[f"ovo_{mechanism}"] = Implementation(mechanism, False)
            found[f"ovo_{mechanism}_preconditioned"] = Implementation(mechanism, True)
    return found


def register() -> None:
    """Enters the names into transformers' attention and mask interfaces; once more changes nothing.

    Without the second, transformers would build no mask for them, and padding would be attended to.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    for name, (mechanism, precondition) in implementations().items():
        if mechanism == "softmax":
            AttentionInterface.register(name, partial(_softmax_attention, precondition))
            AttentionMaskInterface.register(name, eager_mask)
        else:
            AttentionInterface.register(name, partial(_core_attention, mechanism, precondition))
            AttentionMaskInterface.register(name, partial(_padding_mask, name))


def use_attention(model: nn.Module, name: str) -> None:
    """Switches a transformers model to an implementation, in place.

    Weights stay as they are. A saved model does not remember the name: switch again after loading.

    Args:
        model: a PreTrainedModel.
        name: one of `implementations()`, or `eager` or `sdpa`.

    Raises:
        UserError: an unknown name, or a model that would ignore it or that the mechanism cannot serve.
    """
    from transformers import PreTrainedModel

    known = implementations()
    if name not in known and name not in OWN:
        raise UserError(f"attention: '{name}' is not known{suggest(name, [*OWN, *known])}")
    model_name = type(model).__name__
    layers = _attention_layers(model)
    ignoring = sorted({type(layer).__name__ for layer in layers if not _asks_the_interface(layer)})
    if not isinstance(model, PreTrainedModel) or not layers or ignoring:
        culprit = f" ({', '.join(ignoring)})" if ignoring else ""
        raise UserError(
            f"attention: {model_name}{culprit} does not use transformers' attention interface and would silently "
            f"ignore '{name}'; take a model that does, such as BERT, DistilBERT, ViT, DeiT or Swin"
        )
    parts = {type(module).__name__ for module in model.modules()}
    hindrance = next((part for part in sorted(parts) if "CrossAttention" in part or "RelativePosition" in part), None)
    if name in known and known[name].mechanism != "softmax" and hindrance:
        raise UserError(
            f"attention: {model_name} has a {hindrance}, which '{name}' cannot honour as it has no scores between "
            "pairs of tokens; choose preconditioned or ovo_softmax"
        )
    register()
    model.set_attn_implementation(name)
    assert all(m.config._attn_implementation == name for m in model.modules() if isinstance(m, PreTrainedModel))


def _has_nothing_to_learn(mechanism: str) -> bool:
    entry: Any = ATTENTION.get(mechanism)
    if getattr(entry, "needs_grid", False) or getattr(entry, "unsafe", None) or entry.fixed_length:
        return False
    with _own_generator():
        return not list(ATTENTION.build(mechanism, 2, 4).parameters())


def projections_of_heads(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """(layer that takes the merged heads (B,N,D), number of heads) of ViT, DeiT and Swin models inside a model.

    Swin's B counts windows. Models of texts are left out: what they merge has rows of padding.
    """
    layers: list[Any] = [layer for layer in _attention_layers(model) if hasattr(layer, "o_proj")]
    return [(layer.o_proj, layer.num_attention_heads) for layer in layers if _asks_the_interface(layer)]


def _attention_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that attend: called attention, with none inside them that is."""
    named = [module for module in model.modules() if "Attention" in type(module).__name__]
    wrappers = {id(outer) for outer in named for inner in outer.modules() if inner is not outer and inner in named}
    return [module for module in named if id(module) not in wrappers]


def _asks_the_interface(layer: nn.Module) -> bool:
    try:
        return "get_interface(" in inspect.getsource(type(layer).forward)
    except (OSError, TypeError):  # no source at hand
        return False


def _softmax_attention(
    precondition: bool,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention as the interface wants it.

    Args:
        precondition: divides each row of each head's output by its norm.
        module: the layer.
        query: q (B,H,Nq,d); key and value (B,H,Nk,d).
        key: see query.
        value: see query.
        attention_mask: broadcastable to (B,H,Nq,Nk): bool, True = valid, or added to the scores (Swin's holds the
            relative position bias and the shifted windows' regions), the dtype's smallest number = masked.
        scaling: of the scores, d^-1/2 by default.
        dropout: on the attention matrix.
        settings: everything else that a model passes on.

    Returns:
        (B,Nq,H,d) contiguous, and the matrix (B,H,Nq,Nk) if `output_attentions` asks for it.
    """
    _refuse_alterations(module, query, key, settings)
    bias, some = (None, None) if attention_mask is None else _additive(attention_mask, query.dtype)
    if _matrix_is_wanted(module, settings):
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        matrix = (scores if bias is None else scores + bias).softmax(
            dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)
        )
        matrix = (matrix if some is None else torch.where(some, matrix, 0)).to(query.dtype)
        out = drop(matrix, dropout) @ value
    else:
        matrix = None
        out = scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=scaling)
        out = out if some is None else torch.where(some, out, 0)
    out = unit_rows(out) if precondition else out
    return out.transpose(1, 2).contiguous(), matrix


def _additive(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What to add to the scores, -inf where masked, and which rows (..., Nq, 1) have a valid key; others get zeros."""
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    some = allowed.any(dim=-1, keepdim=True)
    bias = torch.zeros_like(mask, dtype=dtype) if mask.dtype == torch.bool else mask.to(dtype)
    return torch.where(some, bias.masked_fill(~allowed, -torch.inf), 0), some


def _core_attention(
    mechanism: str,
    precondition: bool,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention with a registered core as the interface wants it.

    As `_softmax_attention`, but the mask is one of `_padding_mask`, dropout is left out as it has no matrix to act on,
    and the matrix is the core applied to the identity, before preconditioning.
    """
    _refuse_alterations(module, query, key, settings)
    if query.shape[2] != key.shape[2]:
        raise UserError(f"attention: ovo_{mechanism} serves self-attention only; choose preconditioned or ovo_softmax")
    mask = None
    if attention_mask is not None:
        if attention_mask.dtype != torch.bool or attention_mask.shape[1:3] != (1, 1):
            raise UserError(
                f"attention: {type(module).__name__} adds a bias to the scores or masks single pairs of tokens, and "
                f"ovo_{mechanism} has no scores; choose preconditioned or ovo_softmax"
            )
        mask = attention_mask[:, 0, 0]
    core = _core(mechanism, precondition, query.shape[1], query.shape[3], query.device)
    out = core(query, key, value, mask, mask, scaling)
    matrix = None
    if _matrix_is_wanted(module, settings):
        plain = _core(mechanism, False, query.shape[1], query.shape[3], query.device)
        if plain.paired_tokens:
            raise UserError(f"output_attentions: ovo_{mechanism} has no matrix between tokens; leave it off")
        identity = torch.eye(key.shape[2], dtype=value.dtype, device=value.device)
        matrix = plain(query, key, identity.expand(*key.shape[:2], -1, -1), mask, mask, scaling)
    return out.transpose(1, 2).contiguous(), matrix


@cache
def _core(mechanism: str, precondition: bool, heads: int, head_dim: int, device: torch.device) -> AttentionCore:
    """A core, the same for all layers of its shape; its random parts come from a fixed seed."""
    with _own_generator():
        core = ATTENTION.build(mechanism, heads, head_dim).to(device).eval()
    return Preconditioned(core) if precondition else core


@contextmanager
def _own_generator() -> Iterator[None]:
    """Draws from a fixed seed inside, and leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def _padding_mask(
    name: str,
    *,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    **sizes: Any,
) -> Tensor | None:
    """(B,1,1,Nk) bool, True = valid: all that a mechanism without scores can honour.

    Raises:
        UserError: the model masks more than padding (a decoder's causal mask).
    """
    from transformers.masking_utils import bidirectional_mask_function

    if mask_function is not bidirectional_mask_function:
        raise UserError(f"attention: the model masks more than padding, and {name} cannot; choose preconditioned")
    return None if attention_mask is None else attention_mask[:, None, None].bool()


def _refuse_alterations(module: nn.Module, query: Tensor, key: Tensor, settings: dict[str, Any]) -> None:
    """Refuses what is not implemented here, which would otherwise be left out in silence."""
    given = [name for name in _ALTERATIONS if settings.get(name) is not None]
    if query.shape[1] != key.shape[1]:
        given.append("fewer heads of keys than of queries")
    if given:
        raise UserError(
            f"attention: {type(module).__name__} uses {', '.join(given)}, which ovo_clinic's attention does not know; "
            "choose eager or sdpa for this model"
        )


def _matrix_is_wanted(module: nn.Module, settings: dict[str, Any]) -> bool:
    config = getattr(module, "config", None)
    return bool(settings.get("output_attentions", getattr(config, "output_attentions", False)))
