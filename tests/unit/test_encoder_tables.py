"""What a study of encoders tells beside the scores: costs, convergence, condition numbers by layer, heat maps."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient
from sklearn.metrics import accuracy_score, roc_auc_score
from torch import Tensor, nn

from ovo_clinic import (
    encoder_tables,
    experiment,
    figures,
    heat_maps,
    preconditioning,
    scrub,
    studies,
    token_costs,
    verbs,
)
from ovo_clinic.encoders.vit import Vit
from ovo_clinic.errors import UserError
from ovo_clinic.preconditioning import Pair
from ovo_clinic.registry import ENCODERS, SYNTHETIC
from ovo_clinic.study import Arm, Comparison
from ovo_clinic.trained import Trained
from ovo_clinic.types import Batch, Modality, Tokens
from ovo_clinic.verbs.study import Study

SHAPE = {"patch": 8, "width": 16, "depth": 2, "heads": 2}
IMAGE = Modality("image", "image", 1, (16, 24))
ENCODER = "{name: vit, shape: {patch: 8, width: 16, depth: 2, heads: 2}}"
OVERRIDES = (
    f"model.encoders.image={ENCODER}",
    "compare.encoders={image: [{label: plain, encoder: vit},"
    "{label: preconditioned, encoder: {name: vit, precondition: true}}]}",
    "compare.sizes=[16, 32]",
    "compare.heat_maps=true",
    "training.condition_numbers=true",
    "training.epochs=2",
    "training.learning_rate=1e-3",
    "data.size=16",
    "model.dim=8",
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    folder = tmp_path_factory.mktemp("images")
    SYNTHETIC.build("image_folder", folder / "raw", options={"patients": 60, "size": 16})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        yield verbs.compare("xray_abnormal", OVERRIDES, raw=folder / "raw", seeds=1, workers=1)


def test_every_table_and_figure_stands_in_the_folder_the_report_and_the_store(study: Study) -> None:
    folder = study.comparison.folder
    assert set(study.encoder_tables) == set(encoder_tables.FILES)
    for name, frame in study.encoder_tables.items():
        pd.testing.assert_frame_equal(pd.read_csv(folder / f"{name}.csv"), frame, check_dtype=False)
    page = study.report.read_text()
    assert "Comparison of encoders of image" in page and "image.precondition=True" in page
    assert "Encoders and preconditioning" in page and all(text in page for text in encoder_tables.CAPTIONS.values())
    store = MlflowClient(study.tracking_uri)
    experiment = store.get_experiment_by_name("xray_abnormal")
    encoders = store.search_runs([experiment.experiment_id], "tags.kind = 'encoder'")
    assert {found.info.run_name for found in encoders} >= {"plain", "preconditioned"}
    (run,) = store.search_runs([experiment.experiment_id], "tags.kind = 'study'")
    logged = {file.path for place in ("tables", "figures") for file in store.list_artifacts(run.info.run_id, place)}
    assert {f"tables/{name}.csv" for name in encoder_tables.FILES} <= logged
    assert {f"figures/{name}.png" for name in ("token_costs", "convergence", "heat_maps")} <= logged


def test_costs_are_those_of_formulas(study: Study) -> None:
    costs = study.encoder_tables["token_costs"].set_index(["model", "size"])
    width, patch, depth, dim = 16, 8, 2, 8
    for size in (16, 32):
        patches = (size // patch) ** 2
        tokens = patches + 1  # with the class token
        block = 4 * tokens * width**2 + 2 * tokens**2 * width + 8 * tokens * width**2
        macs = patches * patch**2 * width + depth * block + width * dim
        weights = (patch**2 + 1) * width + (patches + 1) * width + 2 * width + (width + 1) * dim
        weights += depth * (4 * width**2 + 2 * 2 * width + 8 * width**2 + 5 * width)
        for model in ("plain", "preconditioned"):
            row = costs.loc[(model, size)]
            assert (row["tokens"], row["macs"], row["parameters"]) == (patches, macs, weights)
    measured = costs[["units_per_second", "peak_mib", "train_units_per_second", "train_peak_mib"]]
    assert (measured > 0).all(axis=None) and (costs["train_peak_mib"] > costs["peak_mib"]).all()


def test_no_two_of_nine_encoders_are_drawn_alike() -> None:
    drawn = list(itertools.islice(figures.styles(), 28))
    assert len(set(drawn)) == 28


def test_the_summary_is_of_the_test_units_at_the_trained_size(study: Study) -> None:
    found, prepared = study.encoder_tables["encoder_summary"].set_index("model"), study.comparison.prepared
    for model, row in found.iterrows():
        (folder,) = study.comparison.run_folders[str(model)]
        predictions = pd.read_parquet(folder / "predictions.parquet").query("split == 'test'")
        score = predictions.filter(like="probability").iloc[:, 0]
        target = prepared.target[predictions["row"]]
        assert row["accuracy_mean"] == pytest.approx(accuracy_score(target, score >= 0.5))
        assert row["auroc_mean"] == pytest.approx(roc_auc_score(target, score)) and np.isnan(row["auroc_sd"])
        assert row["size"] == 16


def test_condition_numbers_are_those_of_the_history(study: Study) -> None:
    layers = study.encoder_tables["condition_layers"]
    assert len(layers) == 2 * 2 * 2 and layers["layer"].tolist() == [1, 2] * 4
    for (model, epoch), own in layers.groupby(["model", "epoch"]):
        (result,) = study.comparison.results[str(model)]
        assert own["condition_number"].mean() == pytest.approx(result["history"][int(epoch) - 1]["condition_number"])


def test_maps_are_means_over_units_and_say_nothing_of_one(study: Study) -> None:
    maps = study.encoder_tables["heat_maps"]
    assert maps.groupby(["model", "map"]).size().to_dict() == {
        (model, kind): size
        for model in ("plain", "preconditioned")
        for kind, size in {"occlusion": 64, "attention": 4}.items()
    }
    shares = maps[maps["map"] == "attention"].groupby("model")["value"].sum()
    assert ((shares > 0) & (shares < 1)).all()


def test_pictures_of_units_are_for_their_owner_only(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(study.comparison.folder.parent.parent))
    written = verbs.heat_maps(study.comparison.name, model="preconditioned", units=2)
    folder = study.comparison.run_folders["preconditioned"][0]
    assert len(written) == 2 and {path.parent for path in written} == {folder / "heat_maps"}
    assert (
        all(path.stat().st_mode & 0o777 == 0o600 for path in written)
        and (folder / "heat_maps").stat().st_mode & 0o77 == 0
    )
    assert folder / "heat_maps" in {item.path for item in scrub.holdings()}
    with pytest.raises(UserError, match="'plan' is not in the study; did you mean 'plain'"):
        verbs.heat_maps(study.comparison.name, model="plan")


def test_a_study_is_read_from_its_folder_as_one_of_encoders(study: Study) -> None:
    again = studies.read(study.comparison.folder)
    assert again.subject == "encoders of image" and again.heads == ["plain", "preconditioned"]
    assert again.results == study.comparison.results


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("compare.sizes=[16, 20]", "compare.sizes: 20: plain: shape.patch: 8 does not divide the size 20 x 20"),
        ("compare.sizes=[0]", "compare.sizes.0"),
    ],
)
def test_sizes_that_do_not_fit_show_before_training(study: Study, override: str, message: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match=re.escape(message)):
        patch.setenv("OVO_CLINIC_HOME", str(study.comparison.folder.parent.parent))
        patch.setattr("ovo_clinic.study.compare", lambda *_, **__: pytest.fail("trained"))
        verbs.compare("xray_abnormal", [*OVERRIDES, override], seeds=1, workers=1)


def compared(histories: Mapping[str, Sequence[Sequence[float]]], models: Mapping[str, Any]) -> Comparison:
    """A comparison of made-up validation AUROCs by model, seed and epoch."""
    results = {
        model: [
            {
                "config": {"model": models[model]},
                "monitor": "auroc",
                "history": [{"epoch": e, "validation_auroc": v, "train_loss": 1 - v} for e, v in enumerate(seed)],
            }
            for seed in seeds
        ]
        for model, seeds in histories.items()
    }
    return cast(Comparison, SimpleNamespace(results=results, heads=list(results)))


def test_heads_can_be_compared_where_the_config_compares_encoders() -> None:
    assert experiment.load("vision_preconditioned").compare.encoders
    given = experiment.load("vision_preconditioned", ["compare.encoders={}", "compare.fusion=[concat, self_attention]"])
    assert not given.compare.encoders and [choice.name for choice in given.compare.fusion] == [
        "concat",
        "self_attention",
    ]


def test_epochs_to_the_plain_model_s_final_score_by_hand() -> None:
    found = preconditioning.convergence(
        compared(
            {
                "a": [[0.5, 0.7, 0.6, 0.8], [0.5, 0.5, 0.5, 0.9]],
                "b": [[0.7, 0.8, 0.7, 0.7], [0.6, 0.6, 0.6, 0.6]],
            },
            {"a": {"fusion": {"precondition": False}}, "b": {"fusion": {"precondition": True}}},
        )
    ).set_index("quantity")
    assert set(found.index) == {"train_loss", "validation_auroc"}
    for row in found.to_dict("records"):
        assert (row["plain"], row["preconditioned"], row["epochs"], row["seeds"]) == ("a", "b", 4, 2)
        assert (row["epochs_to_reach"], row["reached"], row["saved"]) == (2, 1, 0.5)
    assert found.loc["validation_auroc", "plain_final"] == pytest.approx(0.85)


def test_partners_differ_in_preconditioning_alone() -> None:
    models = {
        "ViT": {"encoders": {"image": {"name": "vit", "precondition": False, "attention": None}}},
        "ViT+": {"encoders": {"image": {"name": "vit", "precondition": True, "attention": None}}},
        "DeiT": {"encoders": {"image": {"name": "deit", "attention": "sdpa"}}},
        "DeiT+": {"encoders": {"image": {"name": "deit", "attention": "preconditioned"}}},
        "other": {"encoders": {"image": {"name": "vit", "precondition": True, "attention": {"name": "xca"}}}},
        "BERT": {"encoders": {"note": {"name": "text", "attention": None}}},
        "BERT+": {"encoders": {"note": {"name": "text", "attention": "preconditioned"}}},
        "ovo": {"fusion": {"name": "ovo", "precondition": False, "precondition_eps": 1e-6}},
        "ovo+": {"fusion": {"name": "ovo", "precondition": True, "precondition_eps": 1e-4}},
    }
    comparison = compared({name: [[0.5]] for name in models}, models)
    plain = ["ViT", "DeiT", "BERT", "ovo"]
    assert preconditioning.pairs(comparison) == [Pair(name, f"{name}+") for name in plain]


def test_a_weight_that_only_pretraining_uses_stops_no_measurement() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask_token, self.out = nn.Parameter(torch.zeros(3)), nn.Linear(3, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tokens:
            return Tokens(self.out(x), mask)

    x, mask = torch.ones(2, 4, 3), torch.ones(2, 4, dtype=torch.bool)
    assert np.isfinite(token_costs._step(Encoder(), x, mask)())


def test_a_series_longer_than_an_encoder_takes_shows_before_training() -> None:
    sized = {"name": "sequence", "length": 8, "positions": "learned", "width": 8, "heads": 1, "layers": 1}
    settings = experiment.load("simulation", [f"model.encoders.series={json.dumps(sized)}"])
    arm, series = Arm("learned", "encoder", settings), Modality("series", "sequence", 3)
    token_costs.check([arm], series, [4, 8])
    with pytest.raises(UserError, match=r"^compare.sizes: 16: learned: .* a unit has 16 steps, more than 8; .*$"):
        token_costs.check([arm], series, [8, 16])


def test_no_picture_where_no_test_unit_has_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a partial download of X-rays."""
    data = SimpleNamespace(modalities=[Modality("film", "image", 1, (16, 16))])
    monkeypatch.setattr(heat_maps, "Trained", lambda folder, prepared: SimpleNamespace(data=data))
    prepared: Any = SimpleNamespace(rows=lambda split: np.arange(3), present=lambda name: np.arange(9) > 5)
    assert heat_maps.write_units(prepared, tmp_path, 4) == []


def test_attention_of_the_class_token_in_formulas() -> None:
    torch.manual_seed(0)
    encoder = ENCODERS.build("vit", IMAGE, 8, options={"shape": {**SHAPE, "depth": 1}}).eval()
    assert isinstance(encoder, Vit) and encoder.class_token is not None
    x, mask = torch.randn(3, 1, 16, 24), torch.ones(3, 1, dtype=torch.bool)
    found = heat_maps.class_attention(encoder, x, mask)
    with torch.no_grad():
        patches = encoder.patches(x).flatten(2).mT + encoder.positions
        tokens = torch.cat([encoder.class_token.expand(3, -1, -1), patches], dim=1).double().numpy()
    normed = (tokens - tokens.mean(-1, keepdims=True)) / np.sqrt(tokens.var(-1, keepdims=True) + 1e-5)
    layer: Any = encoder.blocks[0].mixer.layer.layer
    q, k = ((normed @ part.weight.detach().numpy().T).reshape(3, 7, 2, 8) for part in (layer.query, layer.key))
    scores = np.einsum("bhd,bnhd->bhn", q[:, 0], k) / 8**0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert found is not None
    np.testing.assert_allclose(found, weights.mean(1)[:, 1:].reshape(3, 2, 3), rtol=1e-4)


def test_no_attention_map_without_a_class_token_or_softmax() -> None:
    x, mask = torch.randn(1, 1, 16, 24), torch.ones(1, 1, dtype=torch.bool)
    for options in ({"shape": {**SHAPE, "class_token": False}}, {"shape": SHAPE, "attention": "efficient"}):
        encoder = ENCODERS.build("vit", IMAGE, 8, options=options).eval()
        assert heat_maps.class_attention(encoder, x, mask) is None


def test_occlusion_finds_the_square_that_decides() -> None:
    images = np.random.default_rng(0).normal(size=(5, 1, 16, 24)).astype(np.float32)

    def probabilities(rows: np.ndarray, alter: Any = lambda batch: batch) -> np.ndarray:
        valid = torch.ones(len(rows), 1, dtype=torch.bool)
        batch = Batch({"image": torch.from_numpy(images[rows])}, {"image": valid}, torch.zeros(5), torch.arange(5))
        return np.asarray(alter(batch).inputs["image"][:, 0, 4:8, 6:9].mean(dim=(1, 2)).numpy())

    trained = cast(Trained, SimpleNamespace(probabilities=probabilities))
    found = heat_maps.occlusion(trained, "image", np.arange(5), squares=4)
    expected = np.zeros((5, 4, 4))
    expected[:, 1, 1] = np.abs(images[:, 0, 4:8, 6:9].mean(axis=(1, 2)))
    np.testing.assert_allclose(found, expected, atol=1e-6)
