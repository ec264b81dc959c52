"""Prompts by replay: what was tokenized once is never tokenized again.

A chat template is rendered with a marker in place of each message's content. The message's stored token ids stand in
for the marker, and only the text between markers is tokenized. So a conversation keeps the ids that the model has
seen, and text in a message never becomes a control token.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from engine.tokenizer.chat_template import ChatTemplate
from engine.tokenizer.template_process import Check, no_check
from engine.tokenizer.tokenizer import Tokenizer

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TemplateMessage:
    """A message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, or what else the template knows.
        content_ids: the ids of its content alone, shape (n,).
        text: its content.
    """

    role: str
    content_ids: Ids
    text: str


@dataclass(frozen=True, eq=False)
class RenderedPrompt:
    """A conversation as the model reads it.

    Attributes:
        token_ids: shape (n,).
        ends: by a message's place in the conversation, the number of ids up to the end of its content. A message
            that is empty or that the template leaves out has none.
    """

    token_ids: Ids
    ends: Mapping[int, int]


class PromptBuilder:
    """Write conversations as prompts of token ids.

    Args:
        tokenizer: the model's.
        template: the model's.
        now: the time that the template is told, by default the present. Give a conversation its own, or its prompt
            may change from day to day.
        check: called every now and then while the template is waited for; what it raises ends that, and passes.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, *, now: datetime | None = None, check: Check = no_check
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._now = now or datetime.now()
        self._check = check
        self._nonce = uuid.uuid4().hex  # in no text of a message or a template
        self._marker = re.compile(f"{self._nonce}-([0-9]+);")

    def build(self, messages: Sequence[TemplateMessage], *, add_generation_prompt: bool) -> RenderedPrompt:
        """Return the prompt of a conversation, with one BOS if the vocabulary wants it.

        The stored ids of a message are replayed, unless the template changes more of its text than the white space
        around it, as some do to drop earlier reasoning: then what it makes of the text is tokenized.

        Raises:
            ChatTemplateError: the template refuses the conversation, or fails.
        """
        texts = [(message.role, message.text.strip()) for message in messages]
        marks = [
            (message.role, self._mark(i) if len(message.content_ids) else "") for i, message in enumerate(messages)
        ]
        contents = [message.content_ids for message in messages]
        plain = self._render(texts, add_generation_prompt=add_generation_prompt)
        marked = self._render(marks, add_generation_prompt=add_generation_prompt)
        if self._marker.sub(lambda mark: texts[int(mark[1])][1], marked) != plain:
            plain = self._render(texts, add_generation_prompt=False)
            for i, (_, text) in enumerate(texts):
                before, written = self._written(texts, i, plain)
                if written.strip() != text:
                    contents[i] = self._encode_after(before, written)
        return self._replay(marked, contents)

    def encode_content(self, role: str, text: str) -> Ids:
        """Return the ids of a message's content, shape (n,): as the template writes it, special tokens not parsed.

        Raises:
            ChatTemplateError: the template refuses the role, or fails.
        """
        before = [] if role in {"system", "user"} else [("user", "-")]
        after = [("user", "-")] if role == "system" else []
        texts = [*before, (role, text), *after]
        return self._encode_after(*self._written(texts, len(before), self._render(texts, add_generation_prompt=False)))

    def _render(self, texts: Sequence[tuple[str, str]], *, add_generation_prompt: bool) -> str:
        messages = [{"role": role, "content": text} for role, text in texts]
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, now=self._now, check=self._check
        )

    def _mark(self, i: int) -> str:
        return f"{self._nonce}-{i};"

    def _written(self, texts: Sequence[tuple[str, str]], i: int, plain: str) -> tuple[str, str]:
        """Return what the template writes before the content of message `i`, and what it makes of that content.

        `plain` is what it makes of all `texts`. Where this can't be told, the content is taken to stay as it is.
        """
        role, text = texts[i]
        marked = self._render([*texts[:i], (role, self._mark(i)), *texts[i + 1 :]], add_generation_prompt=False)
        before, found, after = marked.partition(self._mark(i))
        n = len(plain) - len(before) - len(after)
        if found and n >= 0 and plain.startswith(before) and plain.endswith(after):
            return before, plain[len(before) : len(before) + n]
        return before, text

    def _encode_after(self, before: str, text: str) -> Ids:
        starts = not before or self._tokenizer.ends_in_special(before)
        return self._tokenizer.encode(text, parse_special=False, add_space_prefix=None if starts else False)

    def _replay(self, marked: str, contents: Sequence[Ids]) -> RenderedPrompt:
        """Put the contents in the place of their markers, and ids in the place of the text between."""
        parts: list[Ids] = []
        ends: dict[int, int] = {}
        n = 0
        for place, part in enumerate(self._marker.split(marked)):
            is_content = place % 2 == 1
            parts.append(contents[int(part)] if is_content else self._encode_gap(part, is_first=place == 0))
            n += len(parts[-1])
            if is_content:
                ends[int(part)] = n
        return RenderedPrompt(np.concatenate(parts), ends)

    def _encode_gap(self, text: str, *, is_first: bool) -> Ids:
        ids = self._tokenizer.encode(text, parse_special=True, add_space_prefix=None if is_first else False)
        vocabulary = self._tokenizer.vocabulary
        if not (is_first and vocabulary.add_bos):
            return ids
        bos = vocabulary.special.bos_id
        n_written = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        return np.concatenate([np.array([bos], np.int32), ids[n_written:]])
