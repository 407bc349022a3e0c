"""The wheel ships every file and works away from the checkout; the package keeps its own rules on imports."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import ovo_clinic

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED = {
    "ovo_clinic": "ovo_clinic",
    "configs": "ovo_clinic/library/configs",
    "data_specs": "ovo_clinic/library/data_specs",
    "pipelines": "ovo_clinic/library/pipelines",
}
SOURCES = sorted(path for folder in ("ovo_clinic", "pipelines") for path in (REPOSITORY / folder).rglob("*.py"))
# Library -> the only files that may import it.
ONLY_IN = {
    "mlflow": ["ovo_clinic/tracking/*.py"],
    "lightning": ["ovo_clinic/training/*.py", "ovo_clinic/data.py"],
    "pytorch_lightning": [],
    "transformers": ["ovo_clinic/encoders/*.py", "ovo_clinic/attention/hf.py"],
}
LEARNING = {"torch", "transformers", "lightning", "mlflow"}


def run(*command: str | Path, cwd: Path = REPOSITORY, **environment: str) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed package; on PYTHONPATH it comes before the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def pinned() -> dict[str, Version]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = {}
    for requirement in requirements:
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and requirement.url is None, requirement
        pins[canonicalize_name(requirement.name)] = Version(specifier.version)
    assert len(pins) == len(requirements)
    return pins


def declared() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["dev"])]


def imports(path: Path) -> set[str]:
    """Top-level names of everything a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def loaded_by(statement: str) -> set[str]:
    """Top-level names in sys.modules after a statement in a fresh interpreter."""
    code = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(run(sys.executable, "-c", code).split())


def test_wheel_ships_every_file_and_no_other(wheel: Path) -> None:
    expected = set()
    for folder, target in SHIPPED.items():
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(f"{target}/{path.relative_to(REPOSITORY / folder).as_posix()}")
    assert all(any(name.startswith(f"{target}/") for name in expected) for target in SHIPPED.values())
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == expected


def test_wheel_names_its_version_command_and_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"ovo_clinic-{ovo_clinic.__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {ovo_clinic.__version__}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        assert f"{info}/licenses/LICENSE" in archive.namelist()
        assert "ovo-clinic = ovo_clinic.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == ovo_clinic.__version__


def test_installed_package_finds_its_own_resources(installed: Path, tmp_path: Path) -> None:
    code = (
        "import ovo_clinic; from ovo_clinic import resources; print(ovo_clinic.__file__);"
        "[print(kind, *resources.names(kind)) for kind in ('configs', 'data_specs', 'pipelines')];"
        "[print(resources.load_pipeline(name).__file__) for name in resources.names('pipelines')]"
    )
    lines = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()
    assert Path(lines[0]).is_relative_to(installed)
    for line, (kind, suffix) in zip(
        lines[1:4], {"configs": "yaml", "data_specs": "yaml", "pipelines": "py"}.items(), strict=True
    ):
        assert line.split() == [kind, *sorted(path.stem for path in (REPOSITORY / kind).glob(f"*.{suffix}"))]
    assert all(Path(line).is_relative_to(installed / "ovo_clinic" / "library") for line in lines[4:])


def test_installed_command_lists_the_configs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "ovo-clinic"
    printed = run(command, "list", "configs", cwd=tmp_path, PYTHONPATH=str(installed), OVO_CLINIC_HOME=str(tmp_path))
    for path in (REPOSITORY / "configs").glob("*.yaml"):
        assert re.search(rf"\b{re.escape(path.stem)}\b", printed), printed


def test_constraints_pin_every_declared_requirement_within_its_range() -> None:
    pins = pinned()
    for requirement in declared():
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert all(version.local is None for version in pins.values())  # a package index serves no `+cpu`


def test_constraints_pin_exactly_what_an_installation_needs() -> None:
    accelerator = ("cuda", "nvidia", "triton")  # torch's builds differ in these, and pin them themselves
    todo, needed = declared(), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, *requirement.extras) in needed or name.startswith(accelerator):
            continue
        needed.add((name, *requirement.extras))
        for text in importlib.metadata.requires(name) or []:
            child = Requirement(text)
            extras = [{"extra": extra} for extra in (*requirement.extras, "")]
            if child.marker is None or any(child.marker.evaluate(extra) for extra in extras):
                todo.append(child)
    assert {name for name, *_ in needed} == set(pinned())


@pytest.mark.parametrize("library", ONLY_IN)
def test_library_is_imported_only_where_it_may_be(library: str) -> None:
    importing = [path.relative_to(REPOSITORY) for path in SOURCES if library in imports(path)]
    assert [path for path in importing if not any(path.match(pattern) for pattern in ONLY_IN[library])] == []


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import ovo_clinic.cli", LEARNING | {"sklearn", "matplotlib"}),
        ("import ovo_clinic.spec, ovo_clinic.prepare", LEARNING),
        ("from ovo_clinic import resources as r; [r.load_pipeline(name) for name in r.names('pipelines')]", LEARNING),
        ("from ovo_clinic.registry import SYNTHETIC; SYNTHETIC.names()", LEARNING),
    ],
    ids=["command line", "prepare", "pipelines", "synthetic data"],
)
def test_data_side_starts_without_the_heavy_libraries(statement: str, unwanted: set[str]) -> None:
    loaded = loaded_by(statement)
    assert "ovo_clinic" in loaded
    assert loaded & unwanted == set()


def test_no_file_is_named_for_nothing() -> None:
    meaningless = {"utils", "util", "helpers", "helper", "common", "base", "core", "misc"}
    assert [path for path in SOURCES if path.stem in meaningless or path.parent.name in meaningless] == []
