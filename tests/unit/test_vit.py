"""The ViT against formulas and against transformers; image modalities in a whole model; published shapes."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.encoders.blocks import sinusoidal_positions
from ovo_clinic.encoders.shapes import SWIN_SHAPES, VIT_SHAPES
from ovo_clinic.errors import UserError
from ovo_clinic.model import FusionModel
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Batch, Modality, Tokens, parameter_count

SIZE, PATCH, WIDTH, HEADS, DIM = (24, 16), 8, 12, 3, 5
XRAY = Modality("xray", "image", 2, SIZE)
SMALL: dict[str, Any] = {"patch": PATCH, "width": WIDTH, "depth": 2, "heads": HEADS}
PRESENT = torch.ones(3, 1, dtype=torch.bool)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def vit(modality: Modality = XRAY, **options: Any) -> Any:
    torch.manual_seed(0)
    return ENCODERS.build("vit", modality, DIM, options={"shape": SMALL, **options}, path="model.encoders.xray").eval()


def images(units: int = 3) -> Tensor:
    return torch.randn(units, 2, *SIZE, generator=torch.Generator().manual_seed(1))


def test_patches_are_cut_in_row_order() -> None:
    encoder = vit()
    with torch.no_grad():
        encoder.patches.bias.zero_()
    x = images()
    weight = encoder.patches.weight.flatten(1)
    embedded = encoder.patches(x).flatten(2).mT
    for row in range(3):
        for column in range(2):
            patch = x[:, :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
            assert_close(embedded[:, 2 * row + column], patch.flatten(1) @ weight.T, rtol=1e-4, atol=1e-5)
    assert encoder.grid == (3, 2)


def test_sinusoidal_positions_are_those_of_vaswani_for_rows_and_columns() -> None:
    found = sinusoidal_positions((3, 5), 16).numpy()
    expected = np.zeros((15, 16))
    for row in range(3):
        for column in range(5):
            for axis, place in enumerate((row, column)):
                for i in range(4):
                    angle = place / 10000 ** (i / 4)
                    expected[5 * row + column, 8 * axis + i] = math.sin(angle)
                    expected[5 * row + column, 8 * axis + 4 + i] = math.cos(angle)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(np.unique(found.round(4), axis=0)) == 15


def hugging_face_twin(encoder: Any, depth: int) -> nn.Module:
    """transformers' ViT with the same weights (our attention has no biases)."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        image_size=SIZE,
        patch_size=PATCH,
        num_channels=2,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
    )
    twin: Any = transformers.ViTModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        ours = encoder.state_dict()
        embeddings = twin.embeddings
        embeddings.cls_token.copy_(ours["class_token"])
        embeddings.position_embeddings[:, 1:].copy_(ours["positions"])
        embeddings.patch_embeddings.projection.load_state_dict(encoder.patches.state_dict())
        twin.layernorm.load_state_dict(encoder.norm.state_dict())
        for layer, block in zip(twin.layers, encoder.blocks, strict=True):
            layer.layernorm_before.load_state_dict(block.mixer.norm.state_dict())
            layer.layernorm_after.load_state_dict(block.network.norm.state_dict())
            attention = block.mixer.layer.layer
            for theirs, own in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("o_proj", "out")):
                getattr(layer.attention, theirs).weight.copy_(getattr(attention, own).weight)
            layer.mlp.fc1.load_state_dict(block.network.layer[0].state_dict())
            layer.mlp.fc2.load_state_dict(block.network.layer[2].state_dict())
    return twin  # type: ignore[no-any-return]


@pytest.mark.parametrize("precondition", [False, True])
def test_softmax_vit_equals_transformers(precondition: bool) -> None:
    from ovo_clinic.attention.hf import use_attention

    encoder = vit(output="tokens", precondition=precondition)
    twin = hugging_face_twin(encoder, depth=2)
    if precondition:
        use_attention(twin, "preconditioned")
    expected = encoder.out(twin(images()).last_hidden_state)
    assert_close(encoder(images(), PRESENT).values, expected, rtol=1e-4, atol=1e-5)
    assert_close(vit(precondition=precondition)(images(), PRESENT).values, expected[:, :1], rtol=1e-4, atol=1e-5)


def norm(module: nn.Module, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    weight, bias = module.parameters()
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def test_xcit_shape_in_formulas() -> None:
    shape = {**SMALL, "depth": 1, "attention": "xca", "lpi": True, "class_layers": 1, "layer_scale": 0.5}
    encoder = vit(shape={**shape, "positions": "sinusoidal"}, output="tokens")
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("scale"):
                parameter.uniform_(0.2, 0.8)
    x = encoder.patches(images()).flatten(2).mT + sinusoidal_positions((3, 2), WIDTH)
    mixer, interaction, network = encoder.blocks[0].mixer, encoder.blocks[0].interaction, encoder.blocks[0].network
    h = norm(mixer.norm, x)
    x = x + mixer.scale * mixer.layer.layer(h, h)  # XCA and LPI themselves are checked against the reference vectors
    x = x + interaction.scale * interaction.layer(norm(interaction.norm, x), (3, 2))
    x = x + network.scale * network.layer(norm(network.norm, x))
    token, block = encoder.class_token.expand(3, -1, -1), encoder.class_blocks[0]
    h = norm(block.norm, torch.cat([token, x], dim=1))
    attention = block.attention
    q, k, v = (part(h).view(3, -1, HEADS, WIDTH // HEADS) for part in (attention.query, attention.key, attention.value))
    scores = torch.einsum("bhd,bnhd->bhn", q[:, 0], k) / (WIDTH // HEADS) ** 0.5
    attended = torch.einsum("bhn,bnhd->bhd", scores.softmax(-1), v).reshape(3, 1, WIDTH)
    token = token + block.scale * attention.out(attended)
    token = token + block.network.scale * block.network.layer(norm(block.network.norm, token))
    expected = encoder.out(norm(encoder.norm, torch.cat([token, x], dim=1)))
    assert_close(encoder(images(), PRESENT).values, expected, rtol=1e-4, atol=1e-5)


def test_without_a_class_token_the_pooled_output_is_the_mean() -> None:
    shape = {**SMALL, "class_token": False}
    every = vit(shape=shape, output="tokens")
    pooled = vit(shape=shape)(images(), PRESENT).values
    assert every(images(), PRESENT).values.shape == (3, 6, DIM)
    assert_close(pooled[:, 0], every(images(), PRESENT).values.mean(dim=1), rtol=1e-4, atol=1e-6)


def test_windows_are_shifted_in_every_second_block_unless_told() -> None:
    grid = {**SMALL, "patch": 2, "depth": 4, "class_token": False}
    blocks = vit(shape=grid, attention={"name": "window", "window": 4}).blocks
    assert [block.mixer.layer.shift for block in blocks] == [0, 2, 0, 2]
    blocks = vit(shape=grid, attention={"name": "window", "window": 4, "shift": 0}).blocks
    assert [block.mixer.layer.shift for block in blocks] == [0, 0, 0, 0]


@pytest.mark.parametrize("lpi", [False, True])
def test_dropping_out_absent_units_leaves_training_to_the_present_ones(lpi: bool) -> None:
    """LPI's batch norm, in training, takes its statistics from present images only."""
    shape = {**SMALL, "lpi": lpi, "class_layers": 1}
    encoder, x = vit(shape=shape, dropout=0.0).train(), images(4)
    mask = torch.tensor([[True], [False], [True], [False]])
    found = encoder(x, mask).values
    alone = vit(shape=shape, dropout=0.0).train()(x[::2], mask[::2]).values
    assert_close(found[::2], alone, rtol=1e-4, atol=1e-5)
    assert (found[1::2] == 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "vit_bb"}, "model.encoders.xray.shape: 'vit_bb' is not known; did you mean 'vit_b'?"),
        ({"shape": {"name": "vit_b", "dept": 2}}, "xray.shape.dept: no such setting; did you mean 'depth'?"),
        ({"shape": {**SMALL, "patch": 5}}, "shape.patch: 5 does not divide the size 24 x 16 of xray"),
        ({"shape": {**SMALL, "heads": 5}}, "heads: 5 does not divide dim 12"),
        ({"shape": {**SMALL, "lpi": True}}, "lpi works on the grid of patches, where a class token has no place"),
        ({"shape": {**SMALL, "class_token": False, "class_layers": 1}}, "class_layers needs class_token: true"),
        ({"shape": {**SMALL, "width": 6, "positions": "sinusoidal"}}, "need a width that 4 divides, not 6"),
        ({"attention": "window"}, "attention: 'window' works on the grid of patches, where a class token has no place"),
        ({"attention": "linformr"}, "mechanism 'linformr' is not known; did you mean 'linformer'?"),
        ({"attention": {"name": "linformer", "length": 6}}, "is told its length by vit"),
        ({"attention": "nystrom_reference"}, "is for comparison with published numbers only"),
        (
            {"shape": {**SMALL, "class_token": False}, "attention": "lpi", "precondition": True},
            "precondition: 'lpi' has no heads",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)
def test_what_does_not_fit_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        vit(**options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_image_encoders_take_images_of_one_size_only(name: str) -> None:
    for modality in (Modality("xray", "vector", 4), Modality("xray", "sequence", 4), Modality("xray", "image", 1)):
        with pytest.raises(UserError, match="xray"):
            ENCODERS.build(name, modality, DIM)


def test_mlp_refuses_images() -> None:
    with pytest.raises(UserError, match="xray is an image; choose vit"):
        ENCODERS.build("mlp", XRAY, DIM)


def test_swin_refuses_images_smaller_than_its_last_window() -> None:
    with pytest.raises(UserError, match="24 x 16 pixels, and windows of 7 in 4 stages need 224"):
        ENCODERS.build("swin", XRAY, DIM)
    with pytest.raises(UserError, match="RelativePosition.*ovo_efficient.*cannot honour"):
        shape = {"patch": 2, "width": 8, "depths": [1, 1], "heads": [1, 2], "window": 4}
        ENCODERS.build("swin", XRAY, DIM, options={"shape": shape, "attention": "ovo_efficient"})
    with pytest.raises(UserError, match="3 heads do not divide the width 16 of stage 2"):
        ENCODERS.options("swin", {"shape": {"width": 8, "depths": [1, 1], "heads": [1, 3]}})


MODALITIES = [Modality("labs", "vector", 4), XRAY, Modality("vitals", "sequence", 3)]


def batch(absent: bool = False) -> Batch:
    """The image is missing for units 1 and 3 (for all if `absent`), the vitals for unit 2."""
    generator = torch.Generator().manual_seed(2)
    image_mask = torch.tensor([[True], [False], [True], [False]]) & (not absent)
    vitals_mask = torch.arange(5) < torch.tensor([[5], [3], [0], [2]])
    inputs = {
        "labs": torch.randn(4, 4, generator=generator),
        "xray": images(4) * image_mask[..., None, None],
        "vitals": torch.randn(4, 5, 3, generator=generator) * vitals_mask[..., None],
    }
    masks = {"labs": torch.ones(4, 1, dtype=torch.bool), "xray": image_mask, "vitals": vitals_mask}
    return Batch(inputs, masks, torch.zeros(4), torch.arange(4))


def model(fusion: str, output: str) -> FusionModel:
    torch.manual_seed(0)
    encoders: Any = {"default": ("mlp", {}), "xray": ("vit", {"shape": SMALL, "output": output})}
    return FusionModel(MODALITIES, encoders, (fusion, {}), dim=8, outputs=2)


@pytest.mark.parametrize("output", ["pooled", "tokens"])
@pytest.mark.parametrize("fusion", ["concat", "self_attention", "cross_attention", "ovo"])
def test_a_model_with_an_image_modality(fusion: str, output: str) -> None:
    net, given = model(fusion, output).eval(), batch()
    tokens: dict[str, Tokens] = net.encode(given)
    count = 1 if output == "pooled" else 7  # the class token and 3 x 2 patches
    assert tokens["xray"].values.shape == (4, count, 8)
    assert tokens["xray"].present.tolist() == [True, False, True, False]
    logits = net(given)
    assert logits.shape == (4, 2) and logits.isfinite().all()
    inputs = dict(given.inputs)
    inputs["xray"] = torch.where(given.masks["xray"][..., None, None], inputs["xray"], torch.nan)
    assert torch.equal(net(Batch(inputs, given.masks, given.target, given.rows)), logits)
    inputs["xray"] = given.inputs["xray"].flip(3)
    assert ((net(Batch(inputs, given.masks, given.target, given.rows)) - logits).abs().amax(1) > 0).tolist() == [
        True, False, True, False,
    ]  # fmt: skip
    logits.square().sum().backward()
    for name, parameter in net.encoders[1].named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).any(), name


@pytest.mark.parametrize("fusion", ["concat", "self_attention", "cross_attention", "ovo"])
def test_an_image_absent_everywhere_equals_a_model_input_without_it(fusion: str) -> None:
    net, given = model(fusion, "tokens").eval(), batch(absent=True)
    logits = net(given)
    without = {name: tokens for name, tokens in net.encode(given).items() if name != "xray"}
    assert_close(logits, net.output(net.fusion(without)))
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert all((parameter.grad == 0).all() for parameter in net.encoders[1].parameters())


def test_patches_are_pooled_by_softmax_attention_with_learned_queries() -> None:
    net, given = model("concat", "tokens").eval(), batch()
    tokens = net.encode(given)["xray"].values
    pool = net.fusion.tokens
    queries = pool.queries[pool.query_rows["xray"]]
    weights = (torch.einsum("nd,btd->bnt", queries, tokens) / 8**0.5).softmax(dim=-1)
    expected = torch.einsum("bnd,nde->bne", weights @ tokens, pool.weight[1]) + pool.bias[1]
    x, present = pool(net.encode(given))
    assert_close(x[present[:, 1], 1], expected[present[:, 1]], rtol=1e-4, atol=1e-5)


PUBLISHED_MILLIONS = {"vit_ti": 5.7, "vit_s": 22.1, "vit_b": 86.6, "deit_b": 86.6, "xcit_s12": 26.3, "xcit_m24": 84.4}
"""With a classifier over 1000 classes. Ours have no biases in the attention, and XCiT one convolution to patches."""


@pytest.mark.parametrize("name", VIT_SHAPES)
def test_published_shapes_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        encoder = ENCODERS.build("vit", Modality("photo", "image", 3, (224, 224)), 1000, options={"shape": name})
    assert parameter_count(encoder) / 1e6 == pytest.approx(PUBLISHED_MILLIONS[name], rel=0.03)
    assert parameter_count(encoder) / 1e6 < PUBLISHED_MILLIONS[name] * 1.003


@pytest.mark.parametrize(("name", "millions"), [("swin_t", 28.3), ("swin_b", 87.8)])
def test_published_swin_shapes_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    with torch.device("meta"):
        encoder = ENCODERS.build("swin", Modality("photo", "image", 3, (224, 224)), 1000, options={"shape": name})
    assert parameter_count(encoder) / 1e6 == pytest.approx(millions, rel=0.003)


FULL_WIDTH = {
    **{name: ("vit", {"shape": {"name": name, "depth": 2}}) for name in VIT_SHAPES},
    **{f"{name}-pre": ("vit", {"shape": {"name": name, "depth": 2}, "precondition": True}) for name in VIT_SHAPES},
    **{name: ("swin", {"shape": {"name": name, "depths": [2, 1, 1, 1]}}) for name in SWIN_SHAPES},
    "swin_b-pre": ("swin", {"shape": {"name": "swin_b", "depths": [2, 1, 1, 1]}, "attention": "preconditioned"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL_WIDTH)
def test_published_shapes_run_forward_and_backward_at_reduced_depth(case: str) -> None:
    name, options = FULL_WIDTH[case]
    torch.manual_seed(0)
    encoder = ENCODERS.build(name, Modality("photo", "image", 3, (224, 224)), 64, options=options)
    tokens = encoder(torch.randn(2, 3, 224, 224), torch.ones(2, 1, dtype=torch.bool))
    assert tokens.values.shape == (2, 1, 64) and tokens.values.isfinite().all()
    tokens.values.square().sum().backward()
    for path, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and (parameter.grad != 0).any(), path
