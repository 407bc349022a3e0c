"""The encoders of X-rays: the paper's CNN against its layers written out, checkpoints against transformers alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.encoders import pretrained_image
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality
from tests.tiny_models import tiny_bert, tiny_image_model

DIM = 12
PRESENT = torch.ones(3, 1, dtype=torch.bool)


def build(name: str, size: tuple[int, int], channels: int = 1, dim: int = DIM, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    encoder = ENCODERS.build(name, Modality("image", "image", channels, size), dim, options=options)
    assert isinstance(encoder, nn.Module)
    return encoder.eval()


def pictures(size: tuple[int, int], channels: int = 1) -> Tensor:
    return torch.randn(3, channels, *size, generator=torch.Generator().manual_seed(1))


def test_the_cnn_has_the_paper_s_layers() -> None:
    encoder = build("cnn", (224, 224), channels=3, dim=256)
    convolutions = (3 * 25 + 1) * 20 + 2 * 20 + (20 * 25 + 1) * 50 + 2 * 50
    linear = (140_450 + 1) * 128 + (128 + 1) * 256 + (256 + 1) * 256
    assert sum(parameter.numel() for parameter in encoder.parameters()) == convolutions + linear
    rates = [module.p for module in encoder.modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.3, 0.2, 0.2, 0.3, 0.1]


def test_the_cnn_computes_what_its_layers_written_out_compute() -> None:
    encoder = build("cnn", (40, 33))
    x = pictures((40, 33))
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    weights = list(encoder.state_dict().values())

    def convolution(x: Tensor, weight: Tensor, bias: Tensor, norm: list[Tensor]) -> Tensor:
        gain, shift, mean, variance = (value.view(1, -1, 1, 1) for value in norm)
        patches = x.unfold(2, 5, 1).unfold(3, 5, 1)
        x = (torch.einsum("bchwij,ocij->bohw", patches, weight) + bias.view(1, -1, 1, 1)).clamp(min=0)
        x = (x - mean) / (variance + 1e-5).sqrt() * gain + shift
        return x.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))

    x = convolution(x, weights[0], weights[1], weights[2:6])  # weights[6] counts batches
    x = convolution(x, weights[7], weights[8], weights[9:13]).reshape(3, -1)
    for weight, bias in zip(weights[14::2], weights[15::2], strict=True):
        x = (x @ weight.T + bias).clamp(min=0)
    assert_close(encoder(pictures((40, 33)), PRESENT).values[:, 0], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "grid", "tokens"), [((224, 224), 7, 7 * 7), ((64, 64), 7, 7 * 7), ((32, 24), 7, 5 * 3), ((16, 40), 2, 2)]
)
def test_the_cnn_gives_at_most_so_many_tokens_a_side(size: tuple[int, int], grid: int, tokens: int) -> None:
    assert build("cnn", size, output="tokens", grid=grid)(pictures(size), PRESENT).values.shape == (3, tokens, DIM)


def test_a_token_of_the_cnn_sees_its_part_of_the_image() -> None:
    encoder, x = build("cnn", (64, 64), output="tokens", grid=3), torch.zeros(1, 1, 64, 64)
    spotted = x.clone()
    spotted[..., 56:60, 2:6] = 5.0
    before, after = (encoder(image, PRESENT[:1]).values[0] for image in (x, spotted))
    assert ((before != after).any(dim=1).nonzero()[:, 0]).tolist() == [6]  # of 3 x 3 below on the left


@pytest.mark.parametrize("modality", [Modality("labs", "vector", 5), Modality("image", "image", 1, (15, 300))])
def test_the_cnn_refuses_what_is_no_image_or_too_small(modality: Modality) -> None:
    with pytest.raises(UserError, match="^encoder: cnn "):
        ENCODERS.build("cnn", modality, DIM)


def reference(folder: Path, architecture: str, x: Tensor) -> Tensor:
    """(B,T,F) of a checkpoint, by transformers alone."""
    from transformers import ResNetModel, ViTModel

    model: Any = {"vit": ViTModel, "resnet": ResNetModel}[architecture].from_pretrained(folder)
    with torch.no_grad():
        states: Tensor = model.eval()(pixel_values=x).last_hidden_state
    return states if states.ndim == 3 else states.flatten(2).transpose(1, 2)


@pytest.mark.parametrize(
    ("architecture", "output"),
    [("vit", "cls"), ("vit", "mean"), ("vit", "tokens"), ("resnet", "mean"), ("resnet", "tokens")],
)
def test_a_checkpoint_s_states_are_those_of_transformers(tmp_path: Path, architecture: str, output: str) -> None:
    folder = tiny_image_model(tmp_path / "model", architecture, channels=3)
    encoder, x = build("pretrained_image", (16, 16), checkpoint=str(folder), output=output), pictures((16, 16))
    states = reference(folder, architecture, x.repeat(1, 3, 1, 1))
    expected = {"cls": states[:, :1], "mean": states.mean(dim=1, keepdim=True), "tokens": states}[output]
    weight, bias = encoder.state_dict()["out.weight"], encoder.state_dict()["out.bias"]
    assert_close(encoder(x, PRESENT).values, expected @ weight.T + bias, rtol=1e-4, atol=1e-5)


def test_images_of_another_size_are_brought_to_the_checkpoint_s(tmp_path: Path) -> None:
    folder = tiny_image_model(tmp_path / "model", channels=3, size=16)
    encoder = build("pretrained_image", (64, 48), checkpoint=str(folder), output="tokens")
    small = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    even = small.repeat_interleave(16, dim=2).repeat_interleave(12, dim=3)  # the same blocks of colour at both sizes
    blocks = small.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    found, sharp = encoder(even, PRESENT).values, encoder(blocks, PRESENT).values
    assert found.shape == (3, 5, DIM)
    assert torch.corrcoef(torch.stack([found.flatten(), sharp.flatten()]))[0, 1] > 0.97


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": "nowhere"}, "holds no transformers model"),
        ({"checkpoint": "bert"}, "is a BertModel, which takes more or other than images"),
        ({"checkpoint": "resnet", "output": "cls"}, "output: cls: a ResNetModel has no such token"),
        ({"checkpoint": "vit"}, "takes images of 7 channels, and these have 3"),
        ({"checkpoint": "resnet", "attention": "preconditioned"}, "attention: "),
        ({"checkpoint": "vit", "frozen": True}, "pretrained_image takes images, or with frozen: true"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    tiny_bert(tmp_path / "bert")
    tiny_image_model(tmp_path / "resnet", "resnet", channels=3)
    tiny_image_model(tmp_path / "vit", channels=7)
    given = {**options, "checkpoint": str(tmp_path / options["checkpoint"])}
    with pytest.raises(UserError, match=message) as error:
        build("pretrained_image", (16, 16), channels=3, **given)
    assert "\n" not in str(error.value)


ABSENT = 2


def prepared_images(folder: Path) -> tuple[Prepared, NDArray[np.uint8]]:
    """Four units of which the third has no image, and the images (3,1,16,16), stored in reverse."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 16, 16)).astype(np.uint8)
    index = np.array([2, 1, -1, 0])
    array = ModalityArray(
        [Column("intensity", "numeric", "intensity")], pixels[::-1], index >= 0, kind="image", index=index
    )
    folder.mkdir()
    array.write(folder, "image")
    return Prepared(folder, {"modalities": {"image": array.describe()}}), pixels


def frozen(prepared: Prepared, checkpoint: Path, output: str) -> ModalityArray:
    options = {"checkpoint": str(checkpoint), "frozen": True, "output": output}
    encoder: Any = ENCODERS.get("pretrained_image")
    array: ModalityArray = encoder.inputs("image", prepared, ENCODERS.options("pretrained_image", options))
    return array


@pytest.mark.parametrize("scaled_by", ["checkpoint", "nothing", "default"])
def test_frozen_embeddings_are_those_of_transformers(tmp_path: Path, scaled_by: str) -> None:
    prepared, pixels = prepared_images(tmp_path / "data")
    folder = tiny_image_model(tmp_path / "model", channels=3)
    settings = {
        "checkpoint": {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
        "nothing": {"do_normalize": False, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    }
    if scaled_by in settings:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings[scaled_by]))
    mean, deviation = {
        "checkpoint": ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
        "nothing": ([0.0] * 3, [1.0] * 3),
        "default": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    }[scaled_by]
    x = torch.from_numpy(pixels.astype(np.float32) / 255).repeat(1, 3, 1, 1)
    x = (x - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(deviation).view(1, 3, 1, 1)
    states = reference(folder, "vit", x).numpy()
    pooled = frozen(prepared, folder, "cls")
    assert pooled.kind == "vector" and pooled.present.tolist() == [True, True, False, True]
    np.testing.assert_allclose(pooled.values[[0, 1, 3]], states[:, 0], rtol=1e-4, atol=1e-5)
    tokens = frozen(prepared, folder, "tokens")
    assert tokens.kind == "sequence" and tokens.offsets is not None and tokens.offsets.tolist() == [0, 5, 10, 10, 15]
    np.testing.assert_allclose(tokens.values.reshape(3, 5, 16), states, rtol=2e-3, atol=2e-3)  # kept in 16 bits


def test_frozen_embeddings_are_made_once_for_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, _ = prepared_images(tmp_path / "data")
    first, second = (tiny_image_model(tmp_path / name, channels=3) for name in ("first", "second"))
    expected = frozen(prepared, first, "mean")
    made: list[Path] = []
    real = pretrained_image.load_model
    monkeypatch.setattr(pretrained_image, "load_model", lambda folder: made.append(folder) or real(folder))
    assert np.array_equal(frozen(prepared, first, "mean").values, expected.values)
    assert np.array_equal(frozen(prepared, second, "mean").values, expected.values) and not made  # of equal content
    (second / "preprocessor_config.json").write_text('{"do_normalize": false}')
    assert not np.array_equal(frozen(prepared, second, "mean").values, expected.values) and len(made) == 1


def test_a_fine_tuned_checkpoint_is_fed_the_images(tmp_path: Path) -> None:
    prepared, pixels = prepared_images(tmp_path / "data")
    encoder: Any = ENCODERS.get("pretrained_image")
    checkpoint = str(tiny_image_model(tmp_path / "model", channels=3))
    options = ENCODERS.options("pretrained_image", {"checkpoint": checkpoint})
    array = encoder.inputs("image", prepared, options)
    assert array.kind == "image" and np.array_equal(array.values, pixels[::-1])
