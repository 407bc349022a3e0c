"""Pretraining of a BERT on local texts: what it learns, what it may read, and that it goes on after a kill."""

import json
import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file
from typer.testing import CliRunner

from ovo_clinic import corpus
from ovo_clinic import experiment as experiments
from ovo_clinic.cli import app
from ovo_clinic.encoders import pretraining
from ovo_clinic.encoders.masked_language import MaskedTraining, Pretraining
from ovo_clinic.encoders.pretraining import pretrain
from ovo_clinic.encoders.text import Text, token_ids
from ovo_clinic.encoders.wordpieces import Masking, learn_tokenizer, pieces
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from ovo_clinic.types import Modality
from ovo_clinic.verbs import compare, pretrain_text
from ovo_clinic.verbs.pretraining import Source
from tests.small_notes import notes_config

SMALL = {"vocabulary": 120, "layers": 1, "width": 32, "max_tokens": 16, "dropout": 0.0, "epochs": 3}
ORGANS, STATES = ["heart", "liver", "kidney", "lung"], ["is clear", "is enlarged", "shows fluid", "was removed"]


def sentences(count: int = 160) -> list[str]:
    """Every organ has one state, so that a masked word follows from the others of its sentence."""
    said = [f"the {organ} {state}." for organ, state in zip(ORGANS, STATES, strict=True)]
    return [f"report {number}: {said[number % 4]} {said[number // 4 % 4]}" for number in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in files of every kind; half of them stand there twice."""
    found = tmp_path_factory.mktemp("texts")
    texts = sentences()
    for number, text in enumerate(texts[:20]):
        (found / "plain").mkdir(exist_ok=True)
        (found / "plain" / f"{number}.txt").write_text(text)
    pl.DataFrame({"id": range(80), "text": texts[:80]}).write_csv(found / "first.csv")
    pl.DataFrame({"Text": texts[60:]}).write_parquet(found / "second.parquet")
    return found


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after a few epochs."""
    out = tmp_path_factory.mktemp("made") / "bert"
    pretrain(
        corpus.of_folder(folder), Pretraining(**SMALL | {"epochs": 25, "batch_size": 16, "learning_rate": 4e-3}), out
    )
    return out


def test_texts_of_a_folder_stand_once_and_are_known_by_content(folder: Path, tmp_path: Path) -> None:
    found = corpus.of_folder(folder)
    assert sorted(found.frame["text"]) == sorted(sentences())
    pl.DataFrame({"note": sentences()[::-1]}).write_csv(tmp_path / "notes.csv")
    assert corpus.of_folder(tmp_path, "note").digest() == found.digest()
    assert corpus.of_folder(tmp_path / "notes.csv", "note").digest() == found.digest()
    training, held_out = found.split(0.1, seed=0)
    assert held_out.len() == 16 and not set(training) & set(held_out)
    assert set(found.split(0.1, seed=1)[1]) != set(held_out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no text in .txt, .csv, .csv.gz or .parquet files"),
        ({"a.txt": b"  \n"}, "has no text in"),
        ({"a.txt": b"caf\xe9"}, "a.txt: is not UTF-8 text"),
        ({"a.csv": b"id,note\n1,fever\n"}, "a.csv: has no column text"),
    ],
)
def test_a_folder_without_texts_is_refused_in_one_line(content: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        corpus.of_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_only_texts_of_training_units_are_read(home: Path, tmp_path: Path) -> None:
    """The words of held-out patients are in no file of the checkpoint; the vocabulary is of training texts."""
    config = notes_config(tmp_path / "notes")
    source = tmp_path / "notes" / "notes.py"
    source.write_text(source.read_text().replace('" ".join(', 'f"note{int(u)}x " + " ".join('))
    prepared = prepare_task(experiments.load(config), None)
    cohort = prepared.cohort.with_columns(split=pl.Series(prepared.split), text=prepared.texts("note")).drop_nulls()
    own = cohort.filter(pl.col("split") == "train")["text"]
    texts = corpus.of_task(prepared)
    assert sorted(texts.frame["text"]) == sorted(own.unique()) and 0 < own.len() < cohort.height
    settings = Pretraining(**SMALL | {"epochs": 1, "vocabulary": 2000})
    record = pretrain(texts, settings, tmp_path / "bert")
    assert record["texts"] == {
        **{"task": "notes", "modality": "note", "dataset": "notes", "data": prepared.manifest["key"]},
        **{"split": prepared.manifest["digests"]["split"], "digest": texts.digest()},
        **{key: value for key, value in record["texts"].items() if key.startswith(("training_", "held_out_"))},
    }
    assert record["texts"]["training_texts"] + record["texts"]["held_out_texts"] == own.n_unique()
    with pytest.raises(UserError, match="--modality: 'vitals' is no modality of texts; valid: note"):
        corpus.of_task(prepared, "vitals")
    with pytest.raises(UserError, match="--modality: of texts task 'simulation' has none"):
        corpus.of_task(prepare_task(experiments.load("simulation", ["data.samples=40"]), None))


def test_patients_are_held_out_whole_and_validation_texts_never_seen(home: Path, tmp_path: Path) -> None:
    frame = pl.DataFrame({"owner": [1, 1, 1, 2, 2, 3, 3, 4], "text": list("abcdefgh")})
    texts = corpus.Texts(frame, {})
    for seed in range(5):
        training, held_out = (frame.filter(pl.col("text").is_in(part.implode())) for part in texts.split(0.3, seed))
        assert held_out["owner"].n_unique() == 1 and not set(training["owner"]) & set(held_out["owner"])
        assert training.height + held_out.height == frame.height
    with pytest.raises(UserError, match="all texts are of one person"):
        corpus.Texts(frame.filter(owner=1), {}).split(0.3, 0)


def test_the_vocabulary_is_the_same_each_time_and_of_the_texts(tmp_path: Path) -> None:
    texts = pl.Series(sentences())
    for name in ("a", "b"):
        learn_tokenizer(texts, 120, 16, tmp_path / name)
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    vocabulary = json.loads((tmp_path / "a" / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary, key=vocabulary.__getitem__)[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = set("".join(sentences()).lower()) - {" "}
    assert {character for token in vocabulary if "[" not in token for character in token.removeprefix("##")} <= letters
    assert {"heart", "kidney", "report"} <= set(vocabulary) and len(vocabulary) <= 120


def test_pieces_hold_the_whole_text_and_masks_are_of_the_asked_share(made: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made)
    texts = pl.Series([" ".join(sentences()[:9]), "the liver is enlarged."])
    found = pieces(texts, tokenizer, 16)
    ids = [row[row != 0].tolist() for row in found]
    assert all(row[0] == 2 and row[-1] == 3 and len(row) <= 16 for row in ids)
    whole = tokenizer.decode([token for row in ids[:-1] for token in row[1:-1]])
    assert whole.replace(" ", "") == texts[0].replace(" ", "")
    many = found[:-1].repeat(200, 1)
    masked, labels = Masking(tokenizer, 0.15, seed=0)(many)
    told = labels >= 0
    ordinary = many.long()[:, : masked.shape[1]] > 4
    assert not (told & ~ordinary).any()
    share = told.sum() / ordinary.sum()
    assert abs(share - 0.15) < 5 * math.sqrt(0.15 * 0.85 / int(ordinary.sum()))
    assert abs((masked[told] == 4).float().mean() - 0.8) < 5 * math.sqrt(0.8 * 0.2 / int(told.sum()))
    assert torch.equal(labels[told], many.long()[:, : masked.shape[1]][told])
    assert torch.equal(masked[~told], many.long()[:, : masked.shape[1]][~told])


def test_it_learns_more_than_how_often_words_occur(made: Path, folder: Path) -> None:
    """Held-out loss below the entropy of single tokens, the least that a guess without context can have."""
    record = json.loads((made / pretraining.RECORD).read_text())
    texts = corpus.of_folder(folder)
    ids = token_ids(texts.split(0.1, 0)[1], made, 16).values
    counts = Counter(token for token in ids.tolist() if token > 4)
    total = sum(counts.values())
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    losses = [epoch["held_out_loss"] for epoch in record["history"]]
    assert min(losses) == record["metrics"]["held_out_loss"] == losses[record["best_epoch"]]
    assert min(losses) < 0.7 * entropy and entropy < losses[0]
    assert record["metrics"]["held_out_perplexity"] == pytest.approx(math.exp(min(losses)))


def test_a_killed_training_ends_as_one_that_was_not(
    made: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, settings = corpus.of_folder(folder), Pretraining(**SMALL | {"dropout": 0.1})
    whole = pretrain(texts, settings, tmp_path / "whole")
    seen: list[int] = []

    def killed(done: int, total: int) -> None:
        seen.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(texts, settings, tmp_path / "parts", killed)
    assert not (tmp_path / "parts").exists()
    with pytest.raises(UserError, match="parts.partial holds an unfinished training on other texts or with other"):
        pretrain(texts, settings.model_copy(update={"seed": 1}), tmp_path / "parts")
    parts = pretrain(texts, settings, tmp_path / "parts", lambda done, total: seen.append(done))
    assert seen == [1, 2, 3]
    apart = ("seconds",)
    assert {k: v for k, v in parts.items() if k not in apart} == {k: v for k, v in whole.items() if k not in apart}
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    monkeypatch.setattr(MaskedTraining, "run", None)  # what is finished is not trained again
    assert pretrain(texts, settings, tmp_path / "parts") == parts
    with pytest.raises(UserError, match="--out: .*made.* holds something else; name a new folder"):
        pretrain(texts, settings, made)


def test_it_stops_where_nothing_gets_better(folder: Path, tmp_path: Path) -> None:
    settings = Pretraining(**SMALL | {"epochs": 30, "patience": 1, "learning_rate": 1e-9, "warmup": 0.0, "seed": 2})
    record = pretrain(corpus.of_folder(folder), settings, tmp_path / "bert")
    assert len(record["history"]) < 30 and len(record["history"]) == record["best_epoch"] + 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attention": "precondition"}, "attention: 'precondition' is not known; did you mean 'preconditioned'"),
        ({"heads": 3}, "pretraining.heads: 3 does not divide the width 32"),
        ({"learning_rate": 1e30}, "pretraining diverged in epoch 0: lower pretraining.learning_rate"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changed: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(corpus.of_folder(folder), Pretraining(**SMALL | changed), tmp_path / "bert")


def test_the_text_encoder_takes_it_with_the_attention_it_was_trained_with(folder: Path, tmp_path: Path) -> None:
    texts, out = corpus.of_folder(folder), tmp_path / "bert"
    pretrain(texts, Pretraining(**SMALL | {"attention": "preconditioned", "epochs": 1}), out)
    ids = torch.tensor([[2, 9, 10, 11, 3]])
    mask = torch.ones_like(ids, dtype=torch.bool)

    def encoded(attention: str | None) -> torch.Tensor:
        torch.manual_seed(0)
        encoder = Text(Modality("note", "text", 120), 8, checkpoint=str(out), attention=attention).eval()
        values: torch.Tensor = encoder(ids, mask).values
        return values

    own = encoded(None)
    assert torch.equal(own, encoded("preconditioned"))
    assert (own - encoded("sdpa")).abs().max() > 1e-3


def test_the_command_writes_for_its_owner_alone_and_mlflow_gets_no_word(
    home: Path, folder: Path, tmp_path: Path
) -> None:
    words = [f"pretraining.{name}={value}" for name, value in (SMALL | {"epochs": 1}).items()]
    out = tmp_path / "bert"
    given = ["pretrain-text", "--texts", str(folder), "--out", str(out), "--precondition", *words]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "144 texts" in done.output and f"checkpoint: {out}" in done.output and "perplexity" in done.output
    assert "(epoch 1 of 1," in done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o700 and not (tmp_path / "bert.partial").exists()
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    record = json.loads((out / pretraining.RECORD).read_text())
    assert record["settings"]["attention"] == "preconditioned"
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    assert CliRunner().invoke(app, given).exit_code == 0  # finds it made, and logs it in place of the first
    (experiment,) = (one for one in client.search_experiments() if one.name == "pretrain-text")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["settings.attention"] == "preconditioned" and run.info.status == "FINISHED"
    assert run.data.params["texts.digest"] == corpus.of_folder(folder).digest()
    assert run.data.metrics["best_held_out_loss"] == record["metrics"]["held_out_loss"]
    told = json.dumps([run.data.params, run.data.tags, record])
    assert not client.list_artifacts(run.info.run_id)
    assert not any(word in told for word in ("heart", "kidney", "enlarged"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either a task or --texts FOLDER"),
        (("simulation", "--texts", "FOLDER"), "give either a task or --texts FOLDER"),
        (("--texts", "FOLDER", "--modality", "note"), "--modality is of a task, and none is named"),
        (("simulation", "--column", "letter"), "--column is of the tables of --texts FOLDER"),
        (("--texts", "FOLDER", "training.epochs=3"), "training.epochs=3 is of a task, and none is named"),
        (
            ("--texts", "FOLDER", "--precondition", "pretraining.attention=sdpa"),
            "--precondition and pretraining.attention=sdpa: leave out one",
        ),
        (("--texts", "FOLDER", "pretraining.epoch=3"), "pretraining.epoch: no such setting; did you mean 'epochs'?"),
    ],
)
def test_the_command_refuses_what_does_not_fit(
    words: tuple[str, ...], message: str, home: Path, folder: Path, tmp_path: Path
) -> None:
    given = [str(folder) if word == "FOLDER" else word for word in words]
    result = CliRunner().invoke(app, ["pretrain-text", "--out", str(tmp_path / "bert"), *given])
    assert isinstance(result.exception, UserError) and message in str(result.exception)
    assert not (tmp_path / "bert").exists()


SUMMARIES = '''
import polars as pl

from ovo_clinic.tables import Step, Tables, TextTable


def tables(raw, spec) -> Tables:
    """Discharge summaries, and whether they tell of an operation."""
    found = pl.read_csv("{file}").drop_nulls("transcription").unique("transcription", maintain_order=True)
    found = found.select(unit_id="note_id", patient_id="note_id", text="transcription")
    operated = found["text"].str.to_lowercase().str.contains("surg|operat").cast(pl.Int64)
    cohort = found.select("unit_id", "patient_id").with_columns(operated=operated)
    table = TextTable(found.select("unit_id", "text"))
    return Tables(cohort, {{"note": table}}, [Step("summaries", found.height, found.height)])
'''
SUMMARIES_SPEC = """
name: summaries
title: Summaries
pipeline: summaries.py
raw: false
modalities: {note: written}
tasks: {summaries: {title: Operated, target: [operated], split: {train: 0.6, validation: 0.2, test: 0.2}}}
"""
SUMMARIES_CONFIG = """
dataset: summaries.spec.yaml
model: {fusion: concat}
training: {epochs: 2, batch_size: 16}
compare:
  seeds: 2
  encoders:
    note:
      - {label: plain, encoder: {name: text, checkpoint: CHECKPOINTS/plain, max_tokens: 64}}
      - {label: preconditioned, encoder: {name: text, checkpoint: CHECKPOINTS/preconditioned, max_tokens: 64}}
"""


@pytest.mark.slow
def test_plain_and_preconditioned_encoders_of_discharge_summaries(shared: Path, home: Path, tmp_path: Path) -> None:
    """Pretrained on the training part of real summaries alone, then compared as encoders of all of them."""
    file = shared / "data" / "notes" / "mtsamples_discharge_summary.csv"
    (tmp_path / "summaries.py").write_text(SUMMARIES.format(file=file))
    (tmp_path / "summaries.spec.yaml").write_text(SUMMARIES_SPEC)
    config = tmp_path / "summaries.yaml"
    config.write_text(SUMMARIES_CONFIG.replace("CHECKPOINTS", str(tmp_path)))
    settings = {
        "vocabulary": 1500,
        "width": 32,
        "max_tokens": 64,
        "epochs": 5,
        "batch_size": 16,
        "learning_rate": 3e-3,
    }
    for name, attention in (("plain", "sdpa"), ("preconditioned", "preconditioned")):
        record = pretrain_text(Source(str(config)), tmp_path / name, settings | {"attention": attention}).record
        losses = [epoch["held_out_loss"] for epoch in record["history"]]
        assert min(losses) < losses[0] < math.log(1500)  # of a guess among all words
    study = compare(str(config), workers=1)
    rows = study.table.rows.set_index("model")
    assert list(rows.index) == ["plain", "preconditioned"]
    assert rows.loc["plain", "parameters"] == rows.loc["preconditioned", "parameters"]
    first, second = (study.comparison.results[name][0]["history"][0]["train_loss"] for name in rows.index)
    assert first != second
    assert rows["auroc_mean"].between(0, 1).all()
