"""The tables of `flops`: every head and mechanism that fits, why others do not, counts beside measured values."""

from pathlib import Path

import pandas as pd
import pytest

from ovo_clinic import costs
from ovo_clinic.errors import UserError

SMALL = ("data.samples=300", "data.modalities=3", "model.dim=16")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path))


def test_tables_of_a_task() -> None:
    names = ["concat", "ovo", "self_attention_reference"]
    found = costs.flops("simulation", SMALL, fusion=names, modalities=(2, 3))
    heads = found.heads.set_index("head")
    assert list(heads.index) == names and found.refused == {}
    parts = heads["macs_encoders"] + heads["macs_fusion"] + heads["macs_output"]
    assert heads["macs_total"].equals(parts.rename("macs_total"))
    assert (heads[["elementwise", "ms_batch_1", "ms_batch_128", "peak_mib_batch_128"]] > 0).all(axis=None)
    assert (heads["parameters_used"] <= heads["parameters"]).all()
    # Two layers, 20 values -> 64 -> 16.
    assert list(found.encoders["macs"]) == 3 * [20 * 64 + 64 * 16]
    assert (heads["macs_encoders"] == found.encoders["macs"].sum()).all()
    assert (found.encoders["encoder"] == "mlp").all() and (found.encoders["ms_batch_128"] > 0).all()
    written = pd.read_csv(found.folder / "heads.csv")
    pd.testing.assert_frame_equal(written, found.heads)
    assert {path.name for path in found.folder.iterdir()} == {
        "heads.csv",
        "encoders.csv",
        "macs_against_modalities.csv",
        "macs.png",
    }


def test_mechanisms_that_fit_and_why_others_do_not() -> None:
    found = costs.flops("simulation", SMALL, fusion=["concat", "ovo"], attention=["softmax", "xca", "window"])
    assert list(found.heads["head"]) == ["concat", "ovo(attention=softmax)", "ovo(attention=xca)"]
    assert list(found.refused) == ["ovo(attention=window)"]
    assert found.refused["ovo(attention=window)"].startswith("attention: 'window' works on the grid of an image")


def test_mistakes() -> None:
    with pytest.raises(UserError, match="--attention: attention mechanism 'sofmax' is not known; did you mean"):
        costs.flops("simulation", SMALL, attention=["sofmax"])
    with pytest.raises(UserError, match="--attention: no head accepts it: attention: 'lpi'"):
        costs.flops("simulation", SMALL, fusion=["ovo"], attention=["lpi"])


def test_numbers_as_text() -> None:
    table = pd.DataFrame({"head": ["ovo"], "macs": [1234567], "ms": [1234.56], "mib": [0.123]})
    assert costs.printable(table).iloc[0].tolist() == ["ovo", "1,234,567", "1,234.6", "0.12"]
