"""Fixtures that every test may use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def unavailable(reason: str) -> None:
    """Skips the test with a reason; under CI, where everything should be there, fails it instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing under CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference vectors and open data beside the repository."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        unavailable(f"{folder.name}/ is not beside the repository")
    return folder


@pytest.fixture(scope="session")
def vectors(shared: Path) -> Path:
    """The folder of reference numbers (OVO_CLINIC_VECTORS, default ../shared/vectors)."""
    return Path(os.environ.get("OVO_CLINIC_VECTORS") or shared / "vectors")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh OVO_CLINIC_HOME."""
    folder = tmp_path / "home"
    monkeypatch.setenv("OVO_CLINIC_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an empty database on a PostgreSQL server."""
    from tests.servers import postgresql

    with postgresql(tmp_path_factory.mktemp("postgresql") / "log") as address:
        yield address
