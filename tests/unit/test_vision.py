"""The backbone's four maps, DeiT beside transformers, and condition numbers inside image encoders."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ovo_clinic import condition
from ovo_clinic import experiment as experiments
from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.encoders.multi_scale import MultiScale
from ovo_clinic.errors import UserError
from ovo_clinic.model import FusionModel
from ovo_clinic.registry import ATTENTION, ENCODERS
from ovo_clinic.settings import Alternative
from ovo_clinic.types import Batch, Modality

SHAPE = {"name": "xcit_s12", "width": 16, "heads": 2, "depth": 4}


def backbone(patch: int, **options: Any) -> MultiScale:
    torch.manual_seed(0)
    options = {"shape": {**SHAPE, "patch": patch}, **options}
    built = ENCODERS.build("multi_scale", Modality("image", "image", 1, (64, 96)), 8, options=options)
    assert isinstance(built, MultiScale)
    return built.eval()


@pytest.mark.parametrize("patch", [4, 8, 16, 32])
def test_maps_have_strides_4_8_16_and_32(patch: int) -> None:
    x, mask = torch.randn(2, 1, 64, 96), torch.ones(2, 1, dtype=torch.bool)
    maps = backbone(patch).maps(x, mask)
    assert [tuple(one.shape) for one in maps] == [(2, 16, 16, 24), (2, 16, 8, 12), (2, 16, 4, 6), (2, 16, 2, 3)]


def test_coarser_maps_are_maxima_of_what_a_block_gives() -> None:
    built = backbone(8, blocks=(4, 4, 4, 4))
    maps = built.maps(torch.randn(1, 1, 64, 96), torch.ones(1, 1, dtype=torch.bool))
    fine = maps[1].detach().numpy()
    for one, factor in ((maps[2], 2), (maps[3], 4)):
        rows, columns = one.shape[2:]
        expected = fine.reshape(1, 16, rows, factor, columns, factor).max(axis=(3, 5))
        np.testing.assert_array_equal(one.detach().numpy(), expected)


def test_maps_come_from_the_blocks_that_are_named() -> None:
    x, mask = torch.randn(1, 1, 64, 96), torch.ones(1, 1, dtype=torch.bool)
    first, last = backbone(8, blocks=(1, 1, 1, 1)), backbone(8, blocks=(4, 4, 4, 4))
    assert len(first.blocks) == 1 and len(last.blocks) == 4
    assert not torch.equal(first.maps(x, mask)[1], last.maps(x, mask)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": {**SHAPE, "patch": 2}}, "leads to none of the strides"),
        ({"blocks": (1, 2, 3, 5)}, "no block 5 among 4"),
        ({"attention": "ovo"}, "not known"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone(8, **options)


def test_deit_pools_class_and_distillation_token_of_transformers() -> None:
    torch.manual_seed(0)
    shape = {"patch": 8, "width": 16, "depth": 2, "heads": 2}
    encoder: Any = ENCODERS.build("deit", Modality("image", "image", 1, (16, 16)), 8, options={"shape": shape}).eval()
    x, mask = torch.randn(3, 1, 16, 16), torch.ones(3, 1, dtype=torch.bool)
    state = encoder.model(pixel_values=x).last_hidden_state.detach().numpy()
    assert state.shape == (3, 2 + 4, 16)
    weight, bias = encoder.out.weight.detach().numpy(), encoder.out.bias.detach().numpy()
    expected = (state[:, 0] + state[:, 1]) / 2 @ weight.T + bias
    np.testing.assert_allclose(encoder(x, mask).values[:, 0].detach().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [{"depth": 5}, {"heads": 3}, {"positions": "sinusoidal"}, {"patch": 5}])
def test_deit_takes_the_shapes_that_it_can_be(shape: dict[str, Any]) -> None:
    given = {"patch": 8, "width": 16, "depth": 2, "heads": 2, **shape}
    image = Modality("image", "image", 1, (16, 16))
    if shape == {"depth": 5}:
        assert len(ENCODERS.build("deit", image, 8, options={"shape": given}).model.layers) == 5
    else:
        with pytest.raises(UserError, match=r"^shape"):
            ENCODERS.build("deit", image, 8, options={"shape": given})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("deit", {"patch": 8, "width": 64, "depth": 1, "heads": 2}),
        ("swin", {"patch": 4, "width": 64, "depths": (1,), "heads": (2,), "window": 4}),
    ],
)
@pytest.mark.parametrize(("given", "expected"), [({}, 0.02), ({"initializer_range": 0.07}, 0.07)])
def test_weights_start_as_wide_as_asked(
    name: str, shape: dict[str, Any], given: dict[str, float], expected: float
) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS.build(name, Modality("image", "image", 1, (16, 16)), 8, options={"shape": shape, **given})
    weights = [weight for key, weight in encoder.named_parameters() if key.startswith("model") and weight.ndim == 2]
    assert len(weights) >= 6
    for weight in (weight for weight in weights if weight.numel() >= 64 * 64):
        assert weight.std().item() == pytest.approx(expected, rel=0.05)


FULL = [
    (config, size, alternative)
    for config in ("vision_fair_full", "vision_preconditioned_full")
    for size in experiments.load(config).compare.sizes
    for alternative in experiments.load(config).compare.encoders["image"]
]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "size", "alternative"), FULL, ids=lambda part: getattr(part, "label", str(part)))
def test_encoders_of_the_papers_size_take_a_training_step(config: str, size: int, alternative: Alternative) -> None:
    experiment, encoder = experiments.load(config), alternative.encoder
    own = experiment.model.encoders.get("image", encoder)
    options = {**(own.options if own.name == encoder.name else {}), **encoder.options}
    built = ENCODERS.build(encoder.name, Modality("image", "image", 1, (size, size)), 8, options=options)
    values = built(torch.randn(1, 1, size, size), torch.ones(1, 1, dtype=torch.bool)).values
    gradients = torch.autograd.grad(values.square().sum(), list(built.parameters()), allow_unused=True)
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def condition_numbers(rows: np.ndarray) -> np.ndarray:
    """Of matrices (...,n,d), by their singular values."""
    singular = np.linalg.svd(rows, compute_uv=False)
    return np.asarray(singular[..., 0] / singular[..., -1])


def test_preconditioning_lowers_the_mean_condition_number_of_softmax_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, 32, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, 2, 32, 16, generator=generator, dtype=torch.float64) / 32**0.5
    q, k, v = (x[:, None] @ weight for weight in weights)
    core = ATTENTION.build("softmax", 2, 16)
    plain, preconditioned = core(q, k, v).numpy(), Preconditioned(core)(q, k, v).numpy()
    before, after = condition_numbers(plain).mean(), condition_numbers(preconditioned).mean()
    assert after < before


@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        ("vit", {"shape": {"patch": 8, "width": 16, "depth": 2, "heads": 2}}, 2),
        ("vit", {"shape": {**SHAPE, "patch": 8, "class_layers": 1}}, 4),
        (
            "vit",
            {
                "shape": {"patch": 8, "width": 16, "depth": 3, "heads": 2, "class_token": False},
                "attention": {"name": "window", "window": 2},
            },
            3,
        ),
        ("deit", {"shape": {"patch": 8, "width": 16, "depth": 2, "heads": 2}}, 2),
        ("swin", {"shape": {"patch": 4, "width": 16, "depths": (2, 1), "heads": (2, 4), "window": 4}}, 3),
    ],
)
def test_every_layer_of_an_image_encoder_has_a_condition_number(
    name: str, options: dict[str, Any], layers: int
) -> None:
    image = Modality("image", "image", 1, (32, 32))
    torch.manual_seed(0)
    model = FusionModel([image], {"image": (name, options)}, ("concat", {}), dim=8, outputs=1).eval()
    batch = Batch(
        {"image": torch.randn(4, 1, 32, 32)},
        {"image": torch.ones(4, 1, dtype=torch.bool)},
        torch.zeros(4),
        torch.arange(4),
    )
    found = condition.condition_metrics(model, batch)
    own = [found[f"condition_number_layer_{layer:02}"] for layer in range(1, layers + 1)]
    assert f"condition_number_layer_{layers + 1:02}" not in found
    assert found["condition_number"] == pytest.approx(np.mean(own)) and min(own) >= 1


def test_the_heads_of_deit_are_those_that_its_projection_takes() -> None:
    image = Modality("image", "image", 1, (32, 32))
    options = {"shape": {"patch": 8, "width": 16, "depth": 1, "heads": 2}}
    torch.manual_seed(0)
    model = FusionModel([image], {"image": ("deit", options)}, ("concat", {}), dim=8, outputs=1).eval()
    taken: list[torch.Tensor] = []
    (projection,) = [module for name, module in model.named_modules() if name.endswith("o_proj")]
    assert isinstance(projection, nn.Module)
    projection.register_forward_pre_hook(lambda module, arguments: taken.append(arguments[0].detach()))
    batch = Batch(
        {"image": torch.randn(5, 1, 32, 32)},
        {"image": torch.ones(5, 1, dtype=torch.bool)},
        torch.zeros(5),
        torch.arange(5),
    )
    found = condition.condition_metrics(model, batch)["condition_number"]
    merged = taken[0].double().numpy().reshape(5, 18, 2, 8).transpose(0, 2, 1, 3)
    assert found == pytest.approx(np.median(condition_numbers(merged), axis=0).mean(), rel=1e-4)
