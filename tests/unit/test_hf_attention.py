"""Our mechanisms inside small transformers models with random weights."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.attention.hf import _core, implementations, register, use_attention
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION
from tests.conftest import REPOSITORY

transformers = pytest.importorskip("transformers")

WIDTH, LENGTH, WORDS = 32, 9, 50
LENGTHS = torch.tensor([9, 5, 1])
TEXT = ("BERT", "DistilBERT")
IMAGE = ("ViT", "DeiT", "Swin")
LINEAR = [name for name, entry in implementations().items() if entry.mechanism != "softmax"]
EVERY_NAME = [("BERT", name) for name in implementations()]
OTHER_MODELS = [(kind, name) for kind in ("DistilBERT", "ViT", "DeiT") for name in ("preconditioned", "ovo_nystrom")]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(kind: str) -> nn.Module:
    """A fresh copy; weights are large enough for the attention to be far from uniform."""
    return copy.deepcopy(_built(kind))


@cache
def _built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    encoder = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    image = {"image_size": 32, "num_channels": 1, "initializer_range": 0.3}
    distil = {"dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "initializer_range": 0.3}
    swin = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
    builders: dict[str, Callable[[], Any]] = {
        "BERT": lambda: transformers.BertModel(
            transformers.BertConfig(vocab_size=WORDS, initializer_range=0.3, **encoder)
        ),
        "DistilBERT": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=WORDS, **distil)),
        "ViT": lambda: transformers.ViTModel(transformers.ViTConfig(patch_size=8, **image, **encoder)),
        "DeiT": lambda: transformers.DeiTModel(transformers.DeiTConfig(patch_size=8, **image, **encoder)),
        "Swin": lambda: transformers.SwinModel(transformers.SwinConfig(**image, **swin)),
    }
    model = builders[kind]().eval()
    with torch.no_grad():  # Swin's relative position bias starts at zero
        for name, parameter in model.named_parameters():
            if "relative_position_bias" in name:
                parameter.normal_()
    return model  # type: ignore[no-any-return]


def words() -> Tensor:
    return torch.randint(1, WORDS, (len(LENGTHS), LENGTH), generator=torch.Generator().manual_seed(1))


def images() -> Tensor:
    return torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))


def run(model: Any, mask: Tensor | None = None, **settings: Any) -> Any:
    if type(model).__name__.startswith(("Bert", "DistilBert")):
        return model(words(), attention_mask=mask, **settings)
    return model(images(), **settings)


def padding() -> Tensor:
    return (torch.arange(LENGTH) < LENGTHS[:, None]).long()


class Watcher(nn.Module):
    """Replaces an attention function; keeps what it was given and gave."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []

    def forward(self, module: nn.Module, *tensors: Any, **settings: Any) -> Any:
        out = self.function(module, *tensors, **settings)
        self.calls.append((tensors, settings, out))
        return out


def watch(name: str, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """Watches an implementation, without what `use_attention` would register again."""
    register()
    mapping = transformers.AttentionInterface._global_mapping
    watcher = Watcher(mapping[name])
    monkeypatch.setitem(mapping, name, watcher)
    monkeypatch.setattr("ovo_clinic.attention.hf.register", lambda: None)
    return watcher


def eager_then_unit_rows(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **settings: Any
) -> tuple[Tensor, Tensor]:
    """transformers' own eager formula, then each row of each head divided by its norm, written out."""
    scores = torch.matmul(q, k.transpose(2, 3)) * scaling
    matrix = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    out = torch.matmul(matrix, v)
    out = out / out.square().sum(dim=-1, keepdim=True).sqrt().detach()
    return out.transpose(1, 2).contiguous(), matrix


def test_every_mechanism_without_parameters_has_a_name() -> None:
    assert {"preconditioned", "ovo_softmax"} <= set(implementations())
    for mechanism in ("efficient", "performer", "xca_fair", "nystrom"):
        assert {f"ovo_{mechanism}", f"ovo_{mechanism}_preconditioned"} <= set(implementations())
    learned_on_a_grid_or_unsafe = ("linformer", "xca", "fastformer", "window", "lpi", "nystrom_reference")
    assert set(learned_on_a_grid_or_unsafe) <= set(ATTENTION.names())
    assert not {f"ovo_{mechanism}" for mechanism in learned_on_a_grid_or_unsafe} & set(implementations())


def test_registering_twice_changes_nothing() -> None:
    register()
    attention, masks = transformers.AttentionInterface(), transformers.AttentionMaskInterface()
    before = sorted(attention.valid_keys()), sorted(masks.valid_keys())
    register()
    assert (sorted(attention.valid_keys()), sorted(masks.valid_keys())) == before
    assert set(implementations()) <= set(before[0]) & set(before[1])


@pytest.mark.parametrize("kind", [*TEXT, *IMAGE])
def test_softmax_equals_eager(kind: str) -> None:
    model = small(kind)
    use_attention(model, "eager")
    expected = run(model).last_hidden_state
    use_attention(model, "ovo_softmax")
    assert_close(run(model).last_hidden_state, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [*TEXT, *IMAGE])
def test_preconditioned_equals_eager_and_row_normalisation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(kind)
    plain = run(model).last_hidden_state
    use_attention(model, "preconditioned")
    found = run(model).last_hidden_state
    transformers.AttentionInterface.register("eager_then_unit_rows", eager_then_unit_rows)
    model.set_attn_implementation("eager_then_unit_rows")  # type: ignore[operator]
    assert_close(found, run(model).last_hidden_state, rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 0.1


@pytest.mark.parametrize("kind", [*TEXT, *IMAGE])
def test_each_head_gives_unit_rows_in_the_layout_that_transformers_wants(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, model = watch("preconditioned", monkeypatch), small(kind)
    use_attention(model, "preconditioned")
    run(model)
    assert len(watcher.calls) == (4 if kind == "Swin" else 2)
    for (query, *_), _, (out, matrix) in watcher.calls:
        batch, heads, tokens, width = query.shape
        assert out.shape == (batch, tokens, heads, width) and out.is_contiguous() and matrix is None
        assert_close(out.norm(dim=-1), torch.ones(batch, tokens, heads))


def test_swin_hands_over_bias_and_regions_and_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, model = watch("ovo_softmax", monkeypatch), small("Swin")
    use_attention(model, "ovo_softmax")
    run(model)
    masks = [tensors[3] for tensors, _, _ in watcher.calls]
    assert [len(mask) > 1 for mask in masks] == [False, True, False, True]  # every second layer is shifted
    for (q, k, v, mask), settings, (out, _) in watcher.calls:
        matrix = torch.softmax(q @ k.mT * settings["scaling"] + mask, dim=-1)
        assert_close(out, (matrix @ v).transpose(1, 2), rtol=1e-4, atol=1e-5)
        without = torch.softmax(q @ k.mT * settings["scaling"], dim=-1)
        assert (out - (without @ v).transpose(1, 2)).abs().max() > 0.01


@pytest.mark.parametrize(("kind", "name"), [*EVERY_NAME, *OTHER_MODELS[:2]])
def test_padding_changes_nothing(kind: str, name: str) -> None:
    model = small(kind)
    use_attention(model, name)
    padded = run(model, padding()).last_hidden_state
    for row, length in enumerate(LENGTHS.tolist()):
        alone: Tensor = model(words()[row : row + 1, :length]).last_hidden_state
        assert_close(padded[row, :length], alone[0], rtol=1e-4, atol=2e-5)
    attended = run(model).last_hidden_state
    assert (attended[1, :5] - padded[1, :5]).abs().max() > 1e-3  # the mask did matter


@pytest.mark.parametrize(("kind", "name"), [*EVERY_NAME, *OTHER_MODELS, ("Swin", "preconditioned")])
def test_gradients_are_finite_and_reach_queries_and_values(kind: str, name: str) -> None:
    model = small(kind)
    use_attention(model, name)
    run(model.train(), padding() if kind in TEXT else None).last_hidden_state.square().sum().backward()
    gradients = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    for word, letter in (("query", "q"), ("value", "v")):
        ends = (f"{word}.weight", f"{letter}_lin.weight", f"{letter}_proj.weight")
        reached = [gradient for path, gradient in gradients.items() if path.endswith(ends)]
        assert len(reached) == (4 if kind == "Swin" else 2)
        assert all((gradient != 0).any() for gradient in reached)


@pytest.mark.parametrize("name", LINEAR)
def test_swin_is_refused_where_there_are_no_scores_to_add_its_bias_to(name: str) -> None:
    with pytest.raises(UserError, match="SwinRelativePositionBias.*choose preconditioned or ovo_softmax"):
        use_attention(small("Swin"), name)
    register()
    model: Any = small("Swin")
    model.set_attn_implementation(name)  # past use_attention: refused in the forward pass
    with pytest.raises(UserError, match="SwinAttention adds a bias to the scores"):
        run(model)


@pytest.mark.parametrize("name", implementations())
def test_a_unit_without_any_token_is_finite(name: str) -> None:
    model = small("BERT")
    use_attention(model, name)
    mask = padding()
    mask[2] = 0
    out = run(model, mask).last_hidden_state
    assert out.isfinite().all()
    assert_close(out[:2], run(model, padding()).last_hidden_state[:2], rtol=1e-4, atol=1e-5)


def test_a_row_without_a_valid_key_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, model = watch("preconditioned", monkeypatch), small("BERT")
    use_attention(model, "preconditioned")
    mask = padding()
    mask[2] = 0
    run(model, mask)
    for _, _, (out, _) in watcher.calls:
        assert (out[2] == 0).all() and (out[:2].norm(dim=-1) > 0.99).all()


@pytest.mark.parametrize("name", ["preconditioned", "ovo_softmax", "ovo_efficient", "ovo_performer", "ovo_nystrom"])
def test_output_attentions_gives_the_matrix_that_was_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, model = watch(name, monkeypatch), small("BERT")
    use_attention(model, name)
    matrices = run(model, padding(), output_attentions=True).attentions
    assert len(matrices) == 2
    valid = padding().bool()
    for matrix, ((q, k, v, _), _, (out, _)) in zip(matrices, watcher.calls, strict=True):
        assert matrix.shape == (3, 4, LENGTH, LENGTH)
        assert (matrix.transpose(1, 3)[~valid] == 0).all()  # columns of padding
        product = (matrix @ v).transpose(1, 2)
        if name == "preconditioned":
            product = product / product.norm(dim=-1, keepdim=True)
        assert_close(product[valid], out[valid], rtol=1e-4, atol=1e-5)
        if name in ("preconditioned", "ovo_softmax"):
            scores = (q @ k.mT / 8**0.5).masked_fill(~valid[:, None, None], -torch.inf)
            assert_close(matrix, scores.softmax(dim=-1), rtol=1e-4, atol=1e-6)


def test_the_matrix_can_be_asked_for_in_the_config_and_does_not_change_the_output() -> None:
    model: Any = small("BERT")
    use_attention(model, "preconditioned")
    without = run(model, padding())
    use_attention(model, "eager")
    model.config.output_attentions = True  # transformers takes it for eager only
    use_attention(model, "preconditioned")
    found = run(model, padding())
    assert len(found.attentions) == 2
    assert_close(found.last_hidden_state, without.last_hidden_state, rtol=1e-5, atol=1e-5)


def test_a_mechanism_without_a_matrix_says_so() -> None:
    model = small("BERT")
    use_attention(model, "ovo_xca_fair")
    with pytest.raises(UserError, match="output_attentions: ovo_xca_fair has no matrix between tokens"):
        run(model, output_attentions=True)


def test_dropout_acts_on_the_matrix() -> None:
    model: Any = small("BERT")
    model.config.attention_probs_dropout_prob = 0.5
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for layer in model.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    use_attention(model, "ovo_softmax")
    model.train()
    assert (run(model).last_hidden_state - run(model).last_hidden_state).abs().max() > 0.01
    model.eval()
    assert torch.equal(run(model).last_hidden_state, run(model).last_hidden_state)


def test_bfloat16_is_near_float32() -> None:
    for kind in (*TEXT, *IMAGE):
        model = small(kind)
        use_attention(model, "preconditioned")
        exact = run(model, padding() if kind in TEXT else None).last_hidden_state
        with torch.autocast("cpu", torch.bfloat16):
            half = run(model, padding() if kind in TEXT else None).last_hidden_state
        assert (half.float() - exact).norm() / exact.norm() < 0.1, kind


def test_performers_features_do_not_depend_on_torchs_generator() -> None:
    outputs, draws = [], []
    for seed in (1, 2):
        model = small("BERT")
        _core.cache_clear()
        torch.manual_seed(seed)
        use_attention(model, "ovo_performer")
        outputs.append(run(model).last_hidden_state)
        draws.append(torch.rand(()))
        torch.manual_seed(seed)
        assert torch.rand(()) == draws[-1]  # nor does drawing them disturb it
    assert torch.equal(*outputs) and draws[0] != draws[1]


def nystromformer() -> nn.Module:
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.NystromformerModel(transformers.NystromformerConfig(vocab_size=WORDS, **settings))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (nystromformer, r"NystromformerModel \(NystromformerSelfAttention\) does not use"),
        (lambda: nn.TransformerEncoderLayer(8, 2), r"TransformerEncoderLayer \(MultiheadAttention\) does not use"),
        (
            lambda: transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])),
            "ResNetModel does not use",
        ),
    ],
    ids=["nystromformer", "torch", "no attention"],
)
def test_a_model_that_would_ignore_it_is_refused(build: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(UserError, match=f"attention: {reason} .*silently ignore 'preconditioned'") as caught:
        use_attention(build(), "preconditioned")
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(
        UserError, match=r"'preconditionned' is not known; did you mean 'preconditioned'\?.*ovo_nystrom"
    ):
        use_attention(small("BERT"), "preconditionned")


def test_a_causal_model_is_refused_where_there_are_no_scores() -> None:
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=WORDS, is_decoder=True, **settings)).eval()
    use_attention(model, "eager")
    expected = model(words()).logits
    use_attention(model, "ovo_softmax")
    assert_close(model(words()).logits, expected, rtol=1e-5, atol=1e-5)
    use_attention(model, "ovo_efficient")
    with pytest.raises(UserError, match="masks more than padding"):
        model(words())


def test_fewer_heads_of_keys_are_refused() -> None:
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
    model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **settings))
    use_attention(model, "preconditioned")
    with pytest.raises(UserError, match="LlamaAttention uses fewer heads of keys than of queries"):
        model(words())


def test_transformers_is_imported_in_encoders_and_hf_only_and_late() -> None:
    importing = {
        str(path.relative_to(REPOSITORY / "ovo_clinic"))
        for path in (REPOSITORY / "ovo_clinic").rglob("*.py")
        if any(line.lstrip().startswith(("import transformers", "from transformers")) for line in path.open())
    }
    assert "attention/hf.py" in importing
    assert all(path == "attention/hf.py" or path.startswith("encoders/") for path in importing), importing
    load_everything = (
        "import sys; from ovo_clinic import model, registry; from ovo_clinic.errors import UserError\n"
        "for found in (registry.ATTENTION, registry.ENCODERS, registry.FUSION):\n"
        "    try: found.get('?')\n"
        "    except UserError: pass\n"
        "print('ovo_clinic.attention.hf' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", load_everything], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
