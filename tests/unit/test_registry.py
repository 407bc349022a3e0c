"""What is listed without importing is what the imported classes say."""

import inspect

import pytest

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, ENCODERS, FUSION, SYNTHETIC, Registry, check, option_schema


@pytest.mark.parametrize("registry", [ATTENTION, ENCODERS, FUSION, SYNTHETIC], ids=lambda registry: registry.kind)
def test_the_catalogue_equals_the_imported_classes(registry: Registry[object]) -> None:
    catalogue = registry.catalogue()
    assert catalogue
    for name, line in catalogue.items():
        assert line == (inspect.getdoc(registry.get(name)) or "").split("\n")[0] != ""
    assert set(registry._entries) == set(catalogue)


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(UserError, match="model.fusion: fusion head 'concatt' is not known; did you mean 'concat'?"):
        FUSION.get("concatt", "model.fusion")


def test_keyword_only_arguments_are_the_schema() -> None:
    def head(dim: int, *, tokens: int = 4, rate: float) -> None: ...

    schema = option_schema(head)
    assert set(schema.model_fields) == {"tokens", "rate"}
    assert check(schema, {"rate": "1e-4"}).model_dump() == {"tokens": 4, "rate": 1e-4}
    for given, message in [
        ({"rate": 1, "token": 8}, "model.token: no such setting; did you mean 'tokens'? valid: rate, tokens"),
        ({"rate": 1, "tokens": "x"}, "model.tokens: 'x': input should be a valid integer"),
        ({}, "model.rate: is required and not given"),
        ({"rate": 1, "to\nken\u2028s": 8}, "model.to ken s: no such setting; did you mean 'tokens'?"),
    ]:
        with pytest.raises(UserError) as caught:
            check(schema, given, "model")
        assert str(caught.value).startswith(message)
