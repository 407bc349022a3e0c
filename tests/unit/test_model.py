from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.errors import UserError
from ovo_clinic.model import FusionModel, NamedOptions, drop_modalities, encode_present
from ovo_clinic.registry import ENCODERS, FUSION
from ovo_clinic.types import Batch, Modality, Tokens
from tests.tiny_models import WORDS, tiny_bert, tiny_image_model

MODALITIES = [Modality("labs", "vector", 4), Modality("values", "sequence", 3), Modality("codes", "vector", 9)]
DIM, BATCH, STEPS = 8, 12, 5
MLP: dict[str, NamedOptions] = {"default": ("mlp", {})}


def model(fusion: str = "ovo", **settings: object) -> FusionModel:
    torch.manual_seed(0)
    return FusionModel(MODALITIES, MLP, (fusion, {}), **{"dim": DIM, "outputs": 3, **settings})  # type: ignore[arg-type]


def batch(absent: tuple[str, ...] = ()) -> Batch:
    """Every modality is missing for some units; those in `absent` are missing for all."""
    generator = torch.Generator().manual_seed(1)
    inputs: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for i, modality in enumerate(MODALITIES):
        steps = STEPS if modality.kind == "sequence" else 1
        mask = torch.rand(BATCH, steps, generator=generator) < 0.8
        mask[i :: len(MODALITIES) + 1] = False
        mask &= torch.tensor(modality.name not in absent)
        x = torch.randn(BATCH, steps, modality.features, generator=generator) * mask[..., None]
        inputs[modality.name] = x if modality.kind == "sequence" else x[:, 0]
        masks[modality.name] = mask
    return Batch(inputs, masks, torch.zeros(BATCH), torch.arange(BATCH))


@pytest.mark.parametrize("fusion", [name for name in FUSION.names() if FUSION.get(name).unsafe is None])
@pytest.mark.parametrize("absent", [(), ("values",), ("labs", "codes"), ("labs", "values", "codes")])
def test_a_modality_absent_everywhere_leaves_every_parameter_in_the_graph(fusion: str, absent: tuple[str, ...]) -> None:
    net = model(fusion)
    logits = net(batch(absent))
    assert logits.shape == (BATCH, 3) and logits.isfinite().all()
    logits.square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    paired = fusion != "cross_attention" or len(absent) < 2  # one modality alone makes no pair
    for modality, encoder in zip(MODALITIES, net.encoders, strict=True):
        reached = any((parameter.grad != 0).any() for parameter in encoder.parameters())
        assert reached == (paired and modality.name not in absent)


def test_a_batch_without_an_image_leaves_the_running_statistics_as_they_are() -> None:
    encoder = ENCODERS.build("cnn", Modality("film", "image", 1, (16, 16)), DIM)
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    films = 3 + torch.randn(6, 1, 16, 16, generator=torch.Generator().manual_seed(2))
    nobody, everyone = torch.zeros(6, 1, dtype=torch.bool), torch.ones(6, 1, dtype=torch.bool)
    tokens = encode_present(encoder, films, nobody)
    assert not tokens.values.any() and not tokens.mask.any()
    tokens.values.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert all(norm.training and not norm.running_mean.any() and (norm.running_var == 1).all() for norm in norms)
    encode_present(encoder, films, everyone)
    # A tenth of the way from 0 to the batch's mean, as the momentum of 0.1 has it.
    first = torch.relu(nn.functional.conv2d(films, *encoder.convolutions[0].parameters()))
    assert_close(norms[0].running_mean, 0.1 * first.mean(dim=(0, 2, 3)))


def test_checkpoints_are_trained_with_their_dropout_and_keep_the_statistics_of_batch_norm(tmp_path: Path) -> None:
    folders = {"note": tiny_bert(tmp_path / "bert"), "film": tiny_image_model(tmp_path / "resnet", "resnet", 1)}
    kinds = {"note": "text", "film": "pretrained_image"}
    modalities = [Modality("note", "text", len(WORDS)), Modality("film", "image", 1, (16, 16))]
    encoders = {name: (kinds[name], {"checkpoint": str(folder)}) for name, folder in folders.items()}
    net = FusionModel(modalities, encoders, ("concat", {}), dim=DIM)
    for mode in (True, False, True):  # as it comes, after an evaluation, and back again
        net.train(mode)
        norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
        others = [module for module in net.modules() if module not in norms]
        assert norms and all(module.training == mode for module in others) and not any(norm.training for norm in norms)
    assert FusionModel(modalities, encoders, ("concat", {}), dim=DIM).encoders[0].model.training
    ids, mask = torch.full((3, 5), 6), torch.ones(3, 5, dtype=torch.bool)
    first, second = (net.encoders[0](ids, mask).values for _ in range(2))
    assert (first - second).abs().max() > 1e-3
    before = [norm.running_mean.clone() for norm in norms]
    net.encoders[1](torch.rand(1, 1, 16, 16), mask[:1, :1])
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True))


def test_a_unit_longer_than_an_encoder_takes_shows_before_training() -> None:
    encoders: dict[str, NamedOptions] = {**MLP, "values": ("sequence", {"length": 4, "width": 8, "heads": 1})}
    net = FusionModel(MODALITIES, encoders, ("concat", {}), dim=DIM)
    net.check_lengths({"labs": 0, "values": 4, "codes": 0})
    with pytest.raises(UserError, match=r"^model.encoders.values.length: a unit has 5 steps, more than 4; [^\n]*$"):
        net.check_lengths({"labs": 0, "values": 5, "codes": 0})


def test_encoders_see_only_the_rows_in_which_their_modality_is_present() -> None:
    net, given = model().eval(), batch(absent=("codes",))
    seen: list[int] = []
    for encoder in net.encoders:
        encoder.register_forward_pre_hook(lambda _, arguments: seen.append(len(arguments[0])))
    tokens = net.encode(given)
    present = [int(given.masks[modality.name].any(dim=1).sum()) for modality in MODALITIES]
    assert 0 < present[0] < BATCH and 0 < present[1] < BATCH and present[2] == 0
    assert seen == [present[0], present[1], 1]
    for modality, encoder in zip(MODALITIES, net.encoders, strict=True):
        whole: Tokens = encoder(given.inputs[modality.name], given.masks[modality.name])
        assert_close(tokens[modality.name].values, whole.values)
        assert torch.equal(tokens[modality.name].mask, given.masks[modality.name])


def test_a_value_under_a_false_mask_changes_no_logit() -> None:
    net, given = model().eval(), batch()
    dirty = {
        name: torch.where(given.masks[name][..., None] if x.ndim == 3 else given.masks[name], x, 1e4)
        for name, x in given.inputs.items()
    }
    assert torch.equal(net(Batch(dirty, given.masks, given.target, given.rows)), net(given))


def test_modality_dropout_keeps_at_least_one_and_invents_none() -> None:
    torch.manual_seed(0)
    units = 20_000
    present = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).bool().repeat(units, 1)
    tokens = {
        f"m{i}": Tokens(present[:, i, None, None].expand(-1, 1, 2).float(), present[:, i, None]) for i in range(4)
    }
    dropped = drop_modalities(tokens, 0.5)
    kept = torch.stack([item.present for item in dropped.values()], dim=1)
    assert not (kept & ~present).any()
    assert torch.equal(kept.any(dim=1), present.any(dim=1))
    for name, item in dropped.items():
        assert torch.equal(item.values[:, :, 0] != 0, item.mask), name
    # Kept with 1/2, or with 1/n if all n would go: 1/2 + (1/2)^n / n.
    by_pattern = kept.view(units, 4, 4).double().mean(dim=0)
    assert_close(by_pattern[0], torch.full((4,), 0.5 + 1 / 64).double(), rtol=0, atol=0.015)
    assert_close(by_pattern[1], torch.tensor([0.625, 0, 0.625, 0]).double(), rtol=0, atol=0.015)
    assert by_pattern[2].tolist() == [0, 1, 0, 0]


def test_modality_dropout_acts_in_training_only() -> None:
    net, given = model(modality_dropout=0.5, dropout=0.0), batch()
    for encoder in net.encoders:
        encoder.eval()
    plain = model(dropout=0.0).eval()(given)
    assert torch.equal(net.eval()(given), plain)
    net.train()
    for encoder in net.encoders:
        encoder.eval()
    torch.manual_seed(1)
    first = net(given)
    torch.manual_seed(1)
    assert torch.equal(net(given), first)
    assert not torch.allclose(first, plain)


@pytest.mark.parametrize(
    ("output", "parameters"), [("linear", 24 * 3 + 3), ("hidden", 2 * 24 + (24 * 8 + 8) + (8 * 3 + 3))]
)
def test_output_network(output: str, parameters: int) -> None:
    net = model("concat", output=output)
    assert sum(parameter.numel() for parameter in net.output.parameters()) == parameters
    x, y = torch.randn(2, 1, 24)
    bend = net.eval().output(x) + net.output(y) - net.output(x + y) - net.output(torch.zeros(1, 24))
    assert (bend.abs().max() < 1e-5) == (output == "linear")


@pytest.mark.parametrize("output", ["linear", "hidden"])
def test_late_fusion_averages_the_logits_of_the_modalities_that_are_present(output: str) -> None:
    net, given = model("late", output=output).eval(), batch()
    logits, presence = torch.zeros(BATCH, 3), torch.zeros(BATCH, 1)
    for modality in MODALITIES:
        masks = {name: mask & (name == modality.name) for name, mask in given.masks.items()}
        present = given.masks[modality.name].any(dim=1, keepdim=True)
        logits += net(Batch(given.inputs, masks, given.target, given.rows)) * present
        presence += present
    assert presence.unique().numel() > 2
    assert_close(net(given), logits / presence.clamp_min(1))


def test_late_fusion_has_an_output_network_for_each_modality() -> None:
    late, concat = model("late"), model("concat")
    own = [sum(parameter.numel() for parameter in network.parameters()) for network in late.output.networks]
    assert own == [2 * 8 + (8 * 8 + 8) + (8 * 3 + 3)] * 3
    encoders = [sum(parameter.numel() for parameter in net.encoders.parameters()) for net in (late, concat)]
    assert encoders[0] == encoders[1]


def test_encoders_are_chosen_by_modality_with_a_default() -> None:
    encoders: dict[str, NamedOptions] = {"default": ("mlp", {"layers": 1}), "values": ("mlp", {"layers": 3})}
    net = FusionModel(MODALITIES, encoders, ("concat", {}), dim=DIM)
    layers = [sum(isinstance(part, nn.Linear) for part in encoder.modules()) for encoder in net.encoders]
    assert layers == [1, 3, 1]


@pytest.mark.parametrize(
    ("encoders", "fusion", "message"),
    [
        ({"lab": ("mlp", {})}, ("concat", {}), r"model\.encoders: there is no modality 'lab'; did you mean 'labs'"),
        ({"labs": ("mlp", {})}, ("concat", {}), r"model\.encoders: modality 'values' has no encoder"),
        ({"default": ("mpl", {})}, ("concat", {}), r"model\.encoders\.labs: encoder 'mpl' is not known"),
        ({"default": ("mlp", {"layers": 9})}, ("concat", {}), r"model\.encoders\.labs\.layers: 9"),
        (MLP, ("concatenate", {}), r"model\.fusion: fusion head 'concatenate' is not known"),
        (MLP, ("ovo", {"heads": "many"}), r"model\.fusion\.heads: 'many'"),
    ],
)
def test_a_wrong_choice_is_named_by_its_path(
    encoders: dict[str, NamedOptions], fusion: NamedOptions, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        FusionModel(MODALITIES, encoders, fusion, dim=DIM)


def test_the_same_seed_gives_the_same_model_and_a_state_dict_restores_it() -> None:
    given = batch()
    first, second = model().eval(), model().eval()
    assert torch.equal(first(given), second(given))
    torch.manual_seed(9)
    other = FusionModel(MODALITIES, MLP, ("ovo", {}), dim=DIM, outputs=3).eval()
    assert not torch.equal(other(given), first(given))
    other.load_state_dict(first.state_dict())
    assert torch.equal(other(given), first(given))
