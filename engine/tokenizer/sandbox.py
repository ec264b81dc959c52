"""Jinja's sandbox for chat templates: what a stranger's program can reach, and how much it makes of nothing.

It bounds neither time nor memory: for that such a program runs in a process of its own (see template_process). This
module is what that process loads, and so knows nothing but Jinja.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_STEPS = 100_000  # of all loops over range() in one rendering
_MAX_REPEATED = 1_000_000  # characters or items made by multiplication


_MAX_ERROR = 300  # letters of what a template says when it fails

Failure = Literal["damaged", "refused", "failed", "stopped"]
"""How a template fails: it is no Jinja; it called `raise_exception`; it raised something else; it was too much."""


class ProgramError(Exception):
    """A template fails: `failure` says how, `text` what it said, on one line without a stop."""

    def __init__(self, failure: Failure, text: str = "") -> None:
        super().__init__(failure, text)
        self.failure, self.text = failure, text


class RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


class Program:
    """A compiled template. `names` are those of its variables that never change.

    Raises:
        ProgramError: it is not a Jinja template, or more of one than can be compiled.
    """

    def __init__(self, source: str, names: Mapping[str, Any]) -> None:
        self._names = names
        try:
            self._template = Sandbox().from_string(source)
        except MemoryError as error:
            raise ProgramError("stopped") from error
        except Exception as error:  # of Jinja, or of Python where what Jinja wrote is beyond it
            raise ProgramError("damaged", _one_line(error)) from error

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, now: datetime) -> str:
        """Return what a template makes of a conversation; see `ChatTemplate.render`. Raises ProgramError."""
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._names, **functions(now)
            )
            text.encode()  # half of a character pair, which only an escape can write, is no text
        except RefusedError as error:
            raise ProgramError("refused", _one_line(error)) from error
        except MemoryError as error:
            raise ProgramError("stopped") from error
        except Exception as error:  # whatever a stranger's program may raise
            raise ProgramError("failed", _one_line(error)) from error
        return text


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


def _one_line(error: Exception) -> str:
    text = str(error)
    line = " ".join(text[: 10 * _MAX_ERROR].split()).rstrip(".") or type(error).__name__
    return line if len(line) <= _MAX_ERROR else f"{line[: _MAX_ERROR - 1].rstrip()}…"
