"""Finds configs, specs and pipelines, shipped or private, and the folder where state lives.

Shipped ones are under `ovo_clinic/library/<kind>` in an installed package and beside the package in a checkout. A name
that ends in `.yaml` or `.py` is a path, so that private data sets work from any folder.
"""

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml

from ovo_clinic.errors import UserError
from ovo_clinic.registry import suggest

Kind = Literal["configs", "data_specs", "pipelines"]
_SUFFIX = {"configs": ".yaml", "data_specs": ".yaml", "pipelines": ".py"}


def folder(kind: Kind) -> Path:
    """Folder of the shipped resources of one kind."""
    package = Path(__file__).resolve().parent
    installed = package / "library" / kind
    return installed if installed.is_dir() else package.parent / kind


def names(kind: Kind) -> list[str]:
    """Names of the shipped resources of one kind, sorted."""
    return sorted(path.stem for path in folder(kind).glob(f"*{_SUFFIX[kind]}"))


def find(kind: Kind, name: str, relative_to: Path | None = None) -> Path:
    """The file of a resource.

    Args:
        kind: which sort.
        name: a shipped name, or a path ending in `.yaml` / `.py`.
        relative_to: folder that a relative path starts from (default: the working folder).

    Raises:
        UserError: nothing there; the message lists the shipped names.
    """
    suffix = _SUFFIX[kind]
    if name.endswith(suffix):
        path = (relative_to or Path.cwd()) / name
        if not path.is_file():
            raise UserError(f"{kind}: {path} does not exist; give a path to a {suffix} file or a name: {names(kind)}")
        return path.resolve()
    path = folder(kind) / f"{name}{suffix}"
    if not path.is_file():
        raise UserError(f"{kind}: '{name}' is not known{suggest(name, names(kind))}, or a path ending in {suffix}")
    return path


def expanded(path: str | Path, what: str) -> Path:
    """The path with `~` followed.

    Args:
        path: as given.
        what: named it, for the message.

    Raises:
        UserError: a home folder of a user who does not exist.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise UserError(f"{what}: {path}: there is no user of this name; give the path itself")
    return Path(found)


def absolute(path: str | Path, what: str) -> Path:
    """The path from the root on, symbolic links followed, whether or not something is there; else as `expanded`."""
    return Path(os.path.realpath(expanded(path, what)))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose top level is a mapping.

    Raises:
        UserError: not readable as YAML, or no mapping at the top.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; save it as such") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(content, dict):
        held = "nothing" if content is None else f"a {type(content).__name__}"
        raise UserError(f"{path}: should hold settings as `key: value` lines; it holds {held}")
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; of these the last one would count, silently."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"'{key.value}' stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.YAMLError: it is none.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # 2020-13-45 looks like a date, and 0x_ like a number
        raise yaml.YAMLError(f"{error}") from None


def load_pipeline(name: str, relative_to: Path | None = None) -> ModuleType:
    """The module of a pipeline, loaded once under one stable name so that worker processes can load it too."""
    path = find("pipelines", name, relative_to)
    shipped = path.parent == folder("pipelines").resolve() or path.parent == folder("pipelines")
    stem = path.stem if shipped else f"private_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    module_name = f"ovo_clinic.library.pipelines.{stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Before execution: dataclasses and pickling look their own module up by name.
    sys.modules[module_name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if shipped or not isinstance(error, Exception):
            raise
        raise UserError(
            f"{place_in(path, error)}: {type(error).__name__}: {first_line(error)}; mend the file"
        ) from None
    return module


def place_in(path: Path, error: BaseException) -> str:
    """`file, line n`: where in a private file an error came from; the file alone where it did not pass through it."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def first_line(error: BaseException) -> str:
    """First line of an error's message."""
    return (str(error).splitlines() or [""])[0]


def home() -> Path:
    """The folder of all state (OVO_CLINIC_HOME, default ./ovo_clinic_home), made on first use with mode 0700.

    Raises:
        UserError: the folder cannot be made or written, or addresses of databases cannot name it.
    """
    path = absolute(os.environ.get("OVO_CLINIC_HOME") or "ovo_clinic_home", "OVO_CLINIC_HOME")
    for character in "?%":
        if character in str(path):
            raise UserError(
                f"OVO_CLINIC_HOME: {path}: addresses of databases cannot hold '{character}'; set it to another folder"
            )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made ({error.strerror})"
        raise UserError(f"OVO_CLINIC_HOME: {path} {reason}; set it to a folder of yours") from None
    if not os.access(path, os.W_OK):
        raise UserError(f"OVO_CLINIC_HOME: {path} cannot be written; set it to a folder of yours")
    return path


def state(*parts: str) -> Path:
    """A folder of `home`, made on first use with mode 0700, as all that it lies in."""
    path = home()
    for part in parts:
        path = path / part
        path.mkdir(mode=0o700, exist_ok=True)
    return path
