"""ListOps: nested operations on lists of digits, whose value is to be told (long sequences, ten classes).

An expression is a digit, or an operation on two or more expressions: `[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. The operations are
the least and the largest argument, their median (rounded down) and their sum modulo 10. A random expression is drawn
from its root: an operation with probability 1/4 while the depth allows one, else a digit; its number of arguments, the
operation and digits are drawn evenly. One whose number of tokens is out of bounds, or that was drawn before, is drawn
again.

Source:
    Nangia and Bowman 2018 (the task); Tay et al. 2021 (Long Range Arena: depth 10, 10 arguments, 500 to 2000 tokens).
"""

import random
import statistics
from typing import Annotated, NamedTuple

import numpy as np
import polars as pl
from pydantic import Field

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import Step, StepsTable, Tables

TOKENS = (*map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]")
FEATURES = (*(f"digit_{digit}" for digit in range(10)), "minimum", "maximum", "median", "sum_modulo", "end")
"""Names of the tokens as features, one each."""

_MINIMUM, _MAXIMUM, _MEDIAN, _SUM_MODULO, _END = range(10, 15)
_OPERATION_SHARE = 0.25
_MOST_DRAWS = 200_000


class Expression(NamedTuple):
    """An expression.

    Attributes:
        tokens: places in TOKENS.
        value: 0 to 9.
    """

    tokens: tuple[int, ...]
    value: int

    def __str__(self) -> str:
        return " ".join(TOKENS[token] for token in self.tokens)


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    samples: Annotated[int, Field(ge=20)] = 6000,
    min_length: Annotated[int, Field(ge=4)] = 64,
    max_length: Annotated[int, Field(ge=4)] = 200,
    max_depth: Annotated[int, Field(ge=2)] = 10,
    max_arguments: Annotated[int, Field(ge=2)] = 10,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Tables:
    """Draws the expressions.

    Args:
        raw: not read; the data set makes its own data.
        spec: names the modality.
        samples: how many, each another one.
        min_length: the least number of tokens; an operation and its end are one each.
        max_length: the largest.
        max_depth: a digit alone has depth 1.
        max_arguments: of an operation; two at least.
        seed: of the draw.

    Raises:
        UserError: hardly any expression is that long.
    """
    found = expressions(samples, (min_length, max_length), max_depth, max_arguments, seed)
    lengths = np.array([len(expression.tokens) for expression in found])
    tokens = np.fromiter((token for expression in found for token in expression.tokens), np.uint8, int(lengths.sum()))
    units = np.arange(samples)
    places = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    steps = {"unit_id": np.repeat(units, lengths), "hours": places.astype(np.float64)}
    steps |= {name: tokens == token for token, name in enumerate(FEATURES)}
    values = [expression.value for expression in found]
    cohort = pl.DataFrame({"unit_id": units, "patient_id": units, "value": values, "tokens": lengths})
    classes = {str(digit): values.count(digit) for digit in range(10)}
    (name,) = spec.modalities
    return Tables(
        cohort, {name: StepsTable(pl.DataFrame(steps))}, [Step("expressions", samples, samples, classes=classes)]
    )


def expressions(
    samples: int, lengths: tuple[int, int], max_depth: int, max_arguments: int, seed: int
) -> list[Expression]:
    """Different expressions with a number of tokens within `lengths`, in the order drawn.

    Raises:
        UserError: hardly any drawn expression is that long, or has not been drawn before.
    """
    draw = random.Random(seed)  # whose random() is the same in every version of Python
    found: dict[tuple[int, ...], int] = {}
    failures = 0
    while len(found) < samples:
        tokens: list[int] = []
        value = _operation(draw, tokens, max_depth, max_arguments, lengths[1])
        if lengths[0] <= len(tokens) <= lengths[1] and tuple(tokens) not in found:
            found[tuple(tokens)] = value
            failures = 0
        elif (failures := failures + 1) > _MOST_DRAWS:
            raise UserError(
                f"data: of {_MOST_DRAWS:,} expressions of up to {max_arguments} arguments and depth {max_depth} none "
                f"is a new one of {lengths[0]} to {lengths[1]} tokens; set data.min_length, data.max_length or "
                "data.samples to others"
            )
    return [Expression(tokens, value) for tokens, value in found.items()]


def _operation(draw: random.Random, tokens: list[int], depth: int, max_arguments: int, longest: int) -> int:
    """Appends a random operation, its arguments and its end to `tokens`; gives its value.

    Once `tokens` are more than `longest`, the expression is of no use and arguments are left out.
    """
    count = 2 + _below(draw, max_arguments - 1)
    operation = _MINIMUM + _below(draw, 4)
    tokens.append(operation)
    arguments = []
    for _ in range(count):
        if len(tokens) > longest:
            return 0
        if depth > 2 and draw.random() < _OPERATION_SHARE:
            arguments.append(_operation(draw, tokens, depth - 1, max_arguments, longest))
        else:
            arguments.append(_below(draw, 10))
            tokens.append(arguments[-1])
    tokens.append(_END)
    return _value(operation, arguments)


def _below(draw: random.Random, bound: int) -> int:
    return int(draw.random() * bound)


def _value(operation: int, arguments: list[int]) -> int:
    match operation:
        case 10:
            return min(arguments)
        case 11:
            return max(arguments)
        case 12:
            return int(statistics.median(arguments))
        case _:
            return sum(arguments) % 10
