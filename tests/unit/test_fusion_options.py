"""What the fusion heads refuse, and what they give a mechanism that asks for a length."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ovo_clinic.attention.performer import Performer
from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import load
from ovo_clinic.registry import ATTENTION, FUSION
from ovo_clinic.types import Modality
from tests.contracts.combinations import combinations

MODALITIES = [Modality("labs", "vector", 4), Modality("vitals", "sequence", 3), Modality("codes", "vector", 9)]
ATTENDING = ["self_attention", "cross_attention", "ovo", "bottleneck"]


def build(name: str, modalities: int = 3, dim: int = 16, **options: Any) -> Any:
    return FUSION.build(name, dim, MODALITIES[:modalities], options=options, path="model.fusion")


class Mechanism(nn.Module):
    """A core that only remembers its length."""

    paired_tokens = False
    fixed_length = False
    position_dependent = True

    def __init__(self, heads: int, head_dim: int, *, length: int = 0) -> None:
        super().__init__()
        self.length = length

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        return q


class Paired(Mechanism):
    paired_tokens = True


class Fixed(Mechanism):
    fixed_length = True


@pytest.fixture
def mechanisms(monkeypatch: pytest.MonkeyPatch) -> None:
    ATTENTION.names()
    monkeypatch.setattr(ATTENTION, "_entries", {**ATTENTION._entries, "paired": Paired, "fixed": Fixed})


@pytest.mark.parametrize("name", ATTENDING)
def test_one_token_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"tokens: {name} needs at least 2 and got 1"):
        build(name, tokens=1)
    build(name, tokens=2)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, "tokens") for name in ("concat", "mean", "gated", "low_rank", "mmtm", "late")),
        ("mixture_of_experts", "tokens"),
        ("missing_token", "tokens"),
        ("low_rank", "rank"),
        ("mmtm", "ratio"),
        ("mixture_of_experts", "experts"),
        ("bottleneck", "bottlenecks"),
    ],
)
def test_sizes_are_at_least_one(name: str, option: str) -> None:
    build(name, **{option: 1})
    with pytest.raises(UserError, match=rf"model\.fusion\.{option}: 0: input should be greater than or equal to 1"):
        build(name, **{option: 0})


def test_a_bottleneck_of_one_layer_would_carry_nothing_across() -> None:
    with pytest.raises(UserError, match=r"model\.fusion\.layers: 1: input should be greater than or equal to 2"):
        build("bottleneck", layers=1)


@pytest.mark.parametrize("name", [*ATTENDING, "ovo_reference", "cross_attention_reference"])
@pytest.mark.parametrize("heads", [0, 3])
def test_heads_that_do_not_divide_the_width_are_refused(name: str, heads: int) -> None:
    with pytest.raises(UserError, match=rf"heads: {heads} does not divide dim 16"):
        build(name, heads=heads)


def test_heads_of_the_self_attention_reference_divide_the_concatenation() -> None:
    build("self_attention_reference", heads=3)
    with pytest.raises(UserError, match="heads: 5 does not divide dim 48"):
        build("self_attention_reference", heads=5)


@pytest.mark.parametrize("name", ["cross_attention", "ovo", "cross_attention_reference", "ovo_reference"])
def test_a_single_modality_is_refused_where_there_is_nothing_to_relate(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} relates modalities to each other and got 1; use concat"):
        build(name, modalities=1)


@pytest.mark.parametrize(
    "name", ["concat", "self_attention", "self_attention_reference", "bottleneck", "mean", "gated"]
)
def test_a_single_modality_is_taken_by_the_others(name: str) -> None:
    assert build(name, modalities=1).out_dim == 16


@pytest.mark.parametrize("name", ATTENDING)
def test_an_unknown_mechanism_or_option_is_named_with_the_valid_ones(name: str) -> None:
    with pytest.raises(UserError, match="attention mechanism 'softmx' is not known; did you mean 'softmax'"):
        build(name, attention="softmx")
    with pytest.raises(UserError, match=r"model\.fusion\.head: no such setting; did you mean 'heads'"):
        build(name, head=4)


@pytest.mark.usefixtures("mechanisms")
@pytest.mark.parametrize("name", ATTENDING)
def test_a_mechanism_that_pairs_tokens_fits_as_queries_and_keys_come_n_to_n(name: str) -> None:
    build(name, attention="paired")


@pytest.mark.parametrize("name", ATTENDING)
@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [
        ("window", "works on the grid of an image's patches and {} has none"),
        ("lpi", "works on the grid of an image's patches and {} has none"),
        ("nystrom_reference", "a result depends on who else is in it"),
        ({"name": "linformer", "length": 3}, "is told its length by {}"),
        ({"name": "linformer", "mixtures": 1}, "attention.mixtures: 1: input should be greater than or equal to 2"),
        ({"name": "nystrom", "kernel": 2}, "attention.kernel: needs a middle: choose an odd number"),
        ({"name": "performer", "featurs": 8}, "attention.featurs: no such setting; did you mean 'features'"),
    ],
)
def test_a_mechanism_that_does_not_fit_is_refused_with_the_reason(name: str, mechanism: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason.format(name)):
        build(name, attention=mechanism)


def test_fastformer_is_refused_where_a_single_modality_would_vanish() -> None:
    with pytest.raises(UserError, match="in ovo these are zero for a unit with one modality, which would vanish"):
        build("ovo", attention="fastformer")
    build("cross_attention", attention="fastformer")
    build("self_attention", attention="fastformer")


@pytest.mark.parametrize("name", ATTENDING)
def test_a_mechanism_is_given_by_name_or_with_options(name: str) -> None:
    plain, wide = build(name, attention="performer"), build(name, attention={"name": "performer", "features": 64})
    features = [next(m for m in head.modules() if isinstance(m, Performer)).omega.shape for head in (plain, wide)]
    assert features == [(6, 4), (64, 4)]  # d log d = 5.5


def test_names_and_options_of_a_mechanism_on_the_command_line() -> None:
    fusion = load("eicu_mortality_24h", ["model.fusion=ovo", "model.fusion.attention=performer"]).model.fusion
    assert fusion.options == {"attention": "performer"}
    overrides = ["model.fusion.attention=performer", "model.fusion.attention.features=64", "model.fusion.heads=2"]
    options = load("eicu_mortality_24h", ["model.fusion=ovo", *overrides]).model.fusion.options
    assert options == {"attention": {"name": "performer", "features": 64}, "heads": 2}
    assert next(m for m in build("ovo", **options).modules() if isinstance(m, Performer)).features == 64


@pytest.mark.parametrize("name", [*ATTENDING, "ovo_reference"])
def test_eps_of_the_preconditioning_is_an_option(name: str) -> None:
    given = {"precondition": True, "precondition_eps": 1e-3}
    layers = [module for module in build(name, **given).modules() if isinstance(module, Preconditioned)]
    assert {layer.eps for layer in layers} == {1e-3}
    with pytest.raises(UserError, match=r"model\.fusion\.precondition_eps: 0"):
        build(name, precondition_eps=0)


@pytest.mark.usefixtures("mechanisms")
@pytest.mark.parametrize("precondition", [False, True])
def test_a_mechanism_of_fixed_length_is_told_the_number_of_keys(precondition: bool) -> None:
    lengths = {}
    for name in ATTENDING:
        head = build(name, attention="fixed", tokens=5, precondition=precondition)
        lengths[name] = next(module.length for module in head.modules() if isinstance(module, Fixed))
    assert lengths == {"self_attention": 15, "cross_attention": 5, "ovo": 5, "bottleneck": 9}


def test_every_accepted_combination_is_checked_without_memory() -> None:
    """As `compare` does before it trains anything."""
    found = combinations()
    for name, options in found.accepted:
        with torch.device("meta"):
            head = build(name, **options)
        assert all(tensor.is_meta for tensor in [*head.parameters(), *head.buffers()]), (name, options)
