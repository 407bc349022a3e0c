"""Name -> class, where the keyword-only constructor arguments ARE the option schema.

A new mechanism, head, encoder or synthetic data set is one decorated file in its package; nothing else lists it:

    @FUSION.register("concat")
    class Concat(nn.Module):
        '''First line: what `ovo-clinic list fusion` prints.'''

        def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: int = 4) -> None: ...

Positional arguments come from the framework, keyword-only ones from the user.
"""

import ast
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from ovo_clinic.errors import UserError

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Options(BaseModel):
    """Base of every schema: unknown keys are errors, defaults are checked too."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False)


class Choice(BaseModel):
    """A registered name with its options: `ovo`, or `{name: ovo, heads: 8}`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """Name with the options that were given, as it stands in tables: `ovo(heads=8)`."""
        given = ",".join(f"{key}={_shown(value)}" for key, value in self.options.items())
        return f"{self.name}({given})" if given else self.name


def _shown(value: Any) -> str:
    """An option's value inside a label; one that is a name with options is shown as such: `window(window=4)`."""
    return Choice(**value).label if isinstance(value, Mapping) and "name" in value else str(value)


class Registry(Generic[T]):
    """The registered classes or functions of one package.

    Args:
        kind: what they are, for messages (`fusion head`).
        package: dotted name of the package whose every module is imported before a name is looked up.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, Callable[..., T]] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[C], C]:
        """Decorator that enters a class or function under `name`."""

        def enter(entry: C) -> C:
            known = self._entries.get(name)
            assert known is None or known.__module__ == entry.__module__, f"two {self.kind}s named {name}"
            self._entries[name] = entry
            return entry

        return enter

    def catalogue(self) -> dict[str, str]:
        """Name -> first line of its docstring, read from the source: listing what there is imports nothing heavy."""
        package = importlib.util.find_spec(self._package)
        assert package is not None and package.submodule_search_locations is not None
        found: dict[str, str] = {}
        for path in sorted(Path(package.submodule_search_locations[0]).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    line = (ast.get_docstring(node) or "").split("\n", maxsplit=1)[0]
                    found |= {name: line for name in map(_registered_name, node.decorator_list) if name}
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """All names, sorted."""
        return list(self.catalogue())

    def get(self, name: str, path: str = "") -> Callable[..., T]:
        """The entry called `name`.

        Raises:
            UserError: no such name; the message lists the valid ones.
        """
        if name not in self._entries and not self._complete:
            package = importlib.import_module(self._package)
            for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
                importlib.import_module(f"{self._package}.{module.name}")
            self._complete = True
        if name not in self._entries:
            where = f"{path}: " if path else ""
            raise UserError(f"{where}{self.kind} '{name}' is not known{suggest(name, self.names())}")
        return self._entries[name]

    def schema(self, name: str) -> type[Options]:
        """The option schema of an entry."""
        return option_schema(self.get(name))

    def options(self, name: str, given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """The given options checked, with defaults filled in.

        Args:
            name: the entry.
            given: option -> value.
            path: where the options stand in the config (`model.fusion`), for messages.

        Raises:
            UserError: an unknown option or a wrong type, by its full path.
        """
        self.get(name, path)
        return check(self.schema(name), given, path).model_dump(mode="json")

    def build(self, name: str, *positional: Any, options: Mapping[str, Any] | None = None, path: str = "") -> T:
        """Constructs an entry from the framework's positional arguments and the user's options."""
        entry = self.get(name, path)
        return entry(*positional, **arguments(entry, options or {}, path))


def _registered_name(decorator: ast.expr) -> str | None:
    """The name in `@REGISTRY.register("name")`."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="register"), args=[ast.Constant(value=str(name))]):
            return name
    return None


def option_schema(function: Callable[..., Any]) -> type[Options]:
    """A pydantic model of the keyword-only arguments of a function, or of a class's constructor."""
    target = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(target, include_extras=True)  # bounds stand in Annotated[...]
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
    name = getattr(function, "__name__", "Options")
    return create_model(name, __base__=Options, **fields)


M = TypeVar("M", bound=BaseModel)


def check(model: type[M], values: Mapping[str, Any], path: str = "") -> M:
    """Validates values against a pydantic model.

    Raises:
        UserError: one line that names every wrong key by its full path, with the valid choices.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise UserError("; ".join(_explain(item, model, path) for item in error.errors())) from None


def arguments(function: Callable[..., Any], given: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The keyword-only arguments to call a function with: given options checked, nested settings as their models.

    Raises:
        UserError: an unknown option or a wrong type, by its full path.
    """
    checked = check(option_schema(function), given, path)
    return {name: getattr(checked, name) for name in type(checked).model_fields}


def _explain(item: Any, model: type[BaseModel], path: str) -> str:
    location, keys = _place(model, [str(part) for part in item["loc"]])
    where = ".".join([path, *location] if path else location)
    if item["type"] == "extra_forbidden":
        return f"{where}: no such setting{suggest(location[-1], keys)}"
    if item["type"] == "missing":
        return f"{where}: is required and not given"
    if item["type"] == "union_tag_not_found":
        return f"{where}.{item['ctx']['discriminator'].strip(chr(39))}: is required and not given"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if isinstance(item["input"], (Mapping, list)) or item["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {item['input']!r}: {message[:1].lower()}{message[1:]}"


def _place(model: type[BaseModel], location: list[str]) -> tuple[list[str], list[str]]:
    """(the location as it stands in the file, the valid keys beside its last part; empty where they cannot be told).

    Where a setting may hold one of several models, pydantic's location also names the model that `kind` selected.
    """
    models, keys, path = [model], sorted(model.model_fields), []
    for part in location:
        selected = [found for found in models if part in _tags(found)]
        if len(models) > 1 and selected:
            models, keys = selected, sorted(selected[0].model_fields)
            continue
        path.append(part)
        keys = sorted({name for found in models for name in found.model_fields})
        fields = [found.model_fields[part] for found in models if part in found.model_fields]
        if fields:  # else it is a key of a mapping: the model of its values stays
            models = [found for field in fields for found in _models(field.annotation)]
    return path, keys


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model inside a type."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _models(part)]


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of `kind` that select a model."""
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field else ()


def suggest(word: str, choices: list[str]) -> str:
    """`; did you mean ...? valid: ...`, the tail of a message about an unknown name."""
    if not choices:
        return "; none is valid here"
    near = difflib.get_close_matches(word, choices, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"{hint} valid: {', '.join(choices)}"


FUSION: Registry[Any] = Registry("fusion head", "ovo_clinic.fusion")
ATTENTION: Registry[Any] = Registry("attention mechanism", "ovo_clinic.attention")
ENCODERS: Registry[Any] = Registry("encoder", "ovo_clinic.encoders")
SYNTHETIC: Registry[Any] = Registry("synthetic data set", "ovo_clinic.synthetic")
BASELINES: Registry[Any] = Registry("classical baseline", "ovo_clinic.baselines")
