"""Options of several values, however they are typed."""

import json
from pathlib import Path

import pytest

from ovo_clinic.commands.values import named_files, names, size, words
from ovo_clinic.errors import UserError

BOTH = {"iv": Path("a"), "cxr": Path("b c")}


@pytest.mark.parametrize(
    ("overrides", "raw", "expected"),
    [
        ([], ["data"], Path("data")),
        ([], ["./x=1"], Path("./x=1")),
        (["seed=1"], None, None),
        ([], ["iv=a", "cxr=b c"], BOTH),
        ([], ["iv=a cxr=b c"], BOTH),
        (["cxr=b c"], ["iv=a"], BOTH),
        (["seed=3", "cxr=b c", "model.dim=8"], ["iv=a"], BOTH),
    ],
)
def test_raw_folders(overrides: list[str], raw: list[str] | None, expected: object) -> None:
    found = words(overrides, raw)
    assert found.raw == expected
    assert found.overrides == [word for word in overrides if not word.startswith("cxr")]


def test_a_home_folder_is_followed_in_one_folder_and_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert words([], ["~/eicu"]).raw == tmp_path / "eicu"
    assert words([], ["iv=~/iv", "cxr=~/cxr"]).raw == {"iv": tmp_path / "iv", "cxr": tmp_path / "cxr"}


def test_a_setting_is_no_source_where_one_folder_is_given() -> None:
    assert words(["cxr=b"], ["data"]).overrides == ["cxr=b"]


def test_split_lists_become_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = words(["b.csv", "seed=1"], None, [Path("a.csv")])
    assert found.overrides[0] == "seed=1"
    key, _, value = found.overrides[1].partition("=")
    assert key == "split_lists" and json.loads(value) == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (["a", "b"], "each needs its source"),
        (["iv=a", "iv=b"], "source 'iv' is given twice"),
        (["iv=a", "b"], "b: of"),
        (["~no-such-user/x"], "no user"),
    ],
)
def test_mistakes(raw: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^--raw: .*{message}"):
        words([], raw)


def test_sizes_and_names() -> None:
    assert [size(text) for text in ("4GB", "1.5 g", "500MiB", "2048", None)] == [
        4 * 2**30, 3 * 2**29, 500 * 2**20, 2048, None
    ]  # fmt: skip
    for text in ("much", "0GB", "-1GB", "4 XB"):
        with pytest.raises(UserError, match="--memory"):
            size(text)
    assert names("a, b,") == ["a", "b"] and names(None) is None


def test_files_by_name() -> None:
    assert named_files(None, "--embeddings") == {}
    assert named_files(["a=x.npz", "b=y=z.npz"], "--embeddings") == {"a": Path("x.npz"), "b": Path("y=z.npz")}
    for wrong in (["x.npz"], ["=x.npz"], ["a="], ["a=x", "a=y"]):
        with pytest.raises(UserError, match=r"--embeddings: '.*': give each name once, as --embeddings NAME=FILE"):
            named_files(wrong, "--embeddings")
