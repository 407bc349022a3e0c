"""The documentation: it builds, asks no other server for anything, and says what is so."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import typer

from ovo_clinic.cli import app
from ovo_clinic.flops import macs_against_modalities
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted((REPOSITORY / "docs").glob("*.md"))
REQUESTED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src")}


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                # Shell variables are values like any other here.
                if line.startswith("ovo-clinic "):
                    yield page.name, line


class Requests(HTMLParser):
    """Collects what a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("rel") not in ("canonical", "next", "prev"):
            self.found += [value for name, value in attrs if (tag, name) in REQUESTED and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_strictly_with_every_page(site: Path) -> None:
    assert {page.stem for page in PAGES} <= {page.stem for page in site.glob("*.html")}


def test_a_reader_asks_no_other_server_for_anything(site: Path) -> None:
    for page in site.glob("*.html"):
        parser = Requests()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found and not [url for url in parser.found if re.match(r"(https?:)?//", url)], page.name


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *PAGES], ids=lambda page: page.name)
def test_what_is_compared_with_tuned_settings_was_tuned(page: Path) -> None:
    """`compare --tuned` refuses single modalities that `tune` did not search for, and folds."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    searched = [line for line in lines if line.startswith("ovo-clinic tune ")]
    for words in lines:
        if words.startswith("ovo-clinic compare ") and "--tuned" in words:
            assert "--folds" not in words
            assert any("--unimodal" not in words or "--unimodal" in search for search in searched)


@pytest.mark.parametrize(("page", "line"), [*commands()])
def test_every_command_in_it_is_one(page: str, line: str) -> None:
    name, *words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    assert command is not None, f"{page}: no command {name}"
    command.make_context(name, words)


def test_one_versus_others_costs_what_is_said_of_it() -> None:
    text = " ".join((REPOSITORY / "docs" / "replication.md").read_text(encoding="utf-8").split())
    few, many = (
        r"0\.(\d\d) \(2 modalities\) to 0\.(\d\d) \(20\) .*? width 64 with 4",
        r"0\.(\d\d) to 0\.(\d\d) at width 256 with 8",
    )
    for width, heads, said in ((64, 4, few), (256, 8, many)):
        costs = macs_against_modalities(width, {"tokens": 4, "heads": heads}, (2, 20), ["ovo", "self_attention"])
        macs = costs.pivot(index="modalities", columns="head", values="macs")
        assert macs.loc[20, "ovo"] == 10 * macs.loc[2, "ovo"]
        shares = 100 * macs["ovo"] / macs["self_attention"]
        found = re.search(said, text)
        assert found and [int(share) for share in found.groups()] == pytest.approx(list(shares), abs=0.6)


def test_nothing_is_installed_in_place_of_the_checkout_and_ray_does_not_report() -> None:
    for page in (REPOSITORY / "README.md", *PAGES):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-c \S+ )?'?\.\[", text), page.name
        for block in blocks(page, "bash"):
            start = re.search(r"^\s*ray start", block, re.MULTILINE)
            assert start is None or "export RAY_USAGE_STATS_ENABLED=0" in block[: start.start()], page.name


def test_the_new_head_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    FUSION.get("concat")
    monkeypatch.setattr(FUSION, "_entries", dict(FUSION._entries))  # so that the new head ends with this test
    (code,) = blocks(REPOSITORY / "docs" / "extending.md", "python")
    exec(compile(code, "extending.md", "exec"), {"__name__": "extending"})
    modalities = [Modality("labs", "vector", 3), Modality("notes", "vector", 2)]
    head = FUSION.build("strongest", 8, modalities, options={"tokens": 2})
    values, mask = torch.randn(5, 1, 8), torch.tensor([True, True, False, False, True])[:, None]
    labs, notes = Tokens(values.masked_fill(~mask[..., None], 0), mask), Tokens(torch.randn(5, 1, 8), ~mask)
    both = head({"labs": labs, "notes": notes})
    # Nobody has both, so that the largest is that of the one that is there.
    assert torch.equal(both[mask[:, 0]], head({"labs": labs})[mask[:, 0]])
    assert torch.equal(both[~mask[:, 0]], head({"notes": notes})[~mask[:, 0]])
    assert not head({"labs": labs})[~mask[:, 0]].any()
