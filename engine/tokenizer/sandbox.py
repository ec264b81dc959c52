"""Jinja's sandbox for chat templates: a stranger's program, with limits on what it can make of nothing."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_STEPS = 100_000  # of all loops over range() in one rendering
_MAX_REPEATED = 1_000_000  # characters or items made by multiplication


class RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


class GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}`: marks what the model says, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - declared so by the base class

    def parse(self, parser: Parser) -> list[Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with the filters, extensions and white space rules of the transformers library."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock])
        self.filters["tojson"] = _to_json

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply, within limits."""
        if operator == "**":
            raise SecurityError("it computes a power")
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and len(many) * times > _MAX_REPEATED:
                raise SecurityError("it multiplies a text")
        return super().call_binop(context, operator, left, right)


def functions(now: datetime) -> dict[str, Callable[..., Any]]:
    """Return the functions that a template may call in one rendering, `now` being the time that it is told."""
    return {"raise_exception": _refuse, "strftime_now": now.strftime, "range": _limited_range()}


def _refuse(message: str) -> NoReturn:
    raise RefusedError(message)


def _limited_range() -> Callable[..., range]:
    steps = 0

    def limited(*bounds: int) -> range:
        nonlocal steps
        numbers = range(*bounds)
        steps += len(numbers)
        if steps > _MAX_STEPS:
            raise SecurityError("it loops for too long")
        return numbers

    return limited


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | options))
