"""Chat templates: how a model wants a conversation to be written.

They come with the model, as Jinja programs by strangers, and are rendered in a sandbox with the names that the
transformers library gives them: `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, `documents`,
`raise_exception`, `strftime_now` and a `tojson` without escapes for HTML.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
import xxhash
from gguf.constants import Keys

from engine.errors import DormouseError
from engine.formats.gguf import GGUFFile
from engine.tokenizer.sandbox import RefusedError, Sandbox, functions
from engine.tokenizer.vocabulary import Vocabulary

# ChatML, which llama.cpp falls back on as well.
FALLBACK = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""


# A model that was not taught ChatML has no tokens for its marks, but may spell them.
_FALLBACK_MARKS = ("<|im_end|>", "<|im_start|>")


class ChatTemplateError(DormouseError):
    """A chat template can't be used, or refuses a conversation."""


class ChatTemplate:
    """The chat template of a model.

    Attributes:
        source: its text.
        is_fallback: the model has none, and this is `FALLBACK`: replies may be poor.
        stop_texts: texts that end a reply, should they come out of the model's normal tokens.
        digest: xxh3-128, in hexadecimal, of all that shapes what it writes.

    Raises:
        ChatTemplateError: the source is not a Jinja template.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = FALLBACK if source is None else source
        self.is_fallback = source is None
        self.stop_texts = _FALLBACK_MARKS if source is None else ()
        self._names = {"bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None}
        self.digest = xxhash.xxh3_128_hexdigest(repr((self.source, bos_token, eos_token)).encode())
        try:
            self._template = Sandbox().from_string(self.source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"The model's chat template is damaged: {_one_line(error)}.") from error

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, now: datetime) -> str:
        """Write a conversation as the model wants it.

        Args:
            messages: each with `role` and `content`.
            add_generation_prompt: end with the beginning of the model's reply.
            now: the time that the template is told when it asks.

        Raises:
            ChatTemplateError: the template refuses the conversation, or fails.
        """
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                **self._names,
                **functions(now),
            )
        except RefusedError as error:
            raise ChatTemplateError(f"The model's chat template refuses this: {_one_line(error)}.") from error
        except Exception as error:  # whatever a stranger's program may raise
            raise ChatTemplateError(f"The model's chat template fails: {_one_line(error)}.") from error


def load_chat_template(gguf: GGUFFile, vocabulary: Vocabulary) -> ChatTemplate:
    """Return the chat template of a model, or the fallback if it has none.

    Raises:
        ChatTemplateError: it is not a Jinja template.
        FormatError: it is not even text.
    """
    key = Keys.Tokenizer.CHAT_TEMPLATE
    bos_token, eos_token = (
        "" if token is None else vocabulary.tokens[token]
        for token in (vocabulary.special.bos_id, vocabulary.special.eos_id)
    )
    source = gguf.value(key, str) if key in gguf.metadata else None
    return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
