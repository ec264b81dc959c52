"""Chat templates: how a model wants a conversation to be written.

They come with the model, as Jinja programs by strangers, and are rendered in a sandbox with the names that the
transformers library gives them: `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, `documents`,
`raise_exception`, `strftime_now` and a `tojson` without escapes for HTML. The sandbox is in a process of its own, where
time and memory have an end.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import xxhash
from gguf.constants import Keys

from engine.errors import DormouseError
from engine.formats.gguf import GGUFFile
from engine.tokenizer.sandbox import Failure, Program, ProgramError
from engine.tokenizer.template_process import Check, TemplateProcess, no_check
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


_ADVICE = "Another file of the same model may have a better one."
_SENTENCES: dict[Failure, str] = {
    "damaged": f"The model's chat template is damaged: {{}}. {_ADVICE}",
    "refused": "The model's chat template refuses this: {}.",
    "failed": f"The model's chat template fails: {{}}. {_ADVICE}",
    "stopped": f"The model's chat template takes more time or memory than it may have, and was stopped. {_ADVICE}",
}


class ChatTemplateError(DormouseError):
    """A chat template can't be used, or refuses a conversation."""


class ChatTemplate:
    """The chat template of a model. It may be used from any thread.

    A stranger's is compiled and rendered in a process of its own, which begins with `start`, or when it is needed, and
    ends with `close`, or when nobody holds the template any more. Our own needs none.

    Attributes:
        source: its text.
        is_fallback: the model has none, and this is `FALLBACK`: replies may be poor.
        stop_texts: texts that end a reply, should they come out of the model's normal tokens.
        digest: xxh3-128, in hexadecimal, of all that shapes what it writes.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = FALLBACK if source is None else source
        self.is_fallback = source is None
        self.stop_texts = _FALLBACK_MARKS if source is None else ()
        self.digest = xxhash.xxh3_128_hexdigest(repr((self.source, bos_token, eos_token)).encode())
        names = {"bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None}
        is_ours = self.source == FALLBACK
        self._program = Program(self.source, names) if is_ours else None
        self._process = None if is_ours else TemplateProcess(self.source, names)

    def start(self) -> None:
        """Begin to compile the template, while something else is done. Raises ChatTemplateError."""
        if self._process is not None:
            with _told():
                self._process.start()

    def compile(self, *, check: Check = no_check) -> None:
        """Wait until the template is compiled.

        Raises:
            ChatTemplateError: it is not a Jinja template, or can't be compiled.
        """
        if self._process is not None:
            with _told():
                self._process.compile(check)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        now: datetime,
        check: Check = no_check,
    ) -> str:
        """Write a conversation as the model wants it.

        Args:
            messages: each with `role` and `content`.
            add_generation_prompt: end with the beginning of the model's reply.
            now: the time that the template is told when it asks.
            check: called every now and then; what it raises ends the rendering, and passes.

        Raises:
            ChatTemplateError: the template refuses the conversation, fails, or takes too much time or memory.
        """
        with _told():
            if self._process is None:
                assert self._program is not None
                return self._program.render(messages, add_generation_prompt=add_generation_prompt, now=now)
            return self._process.render(messages, add_generation_prompt=add_generation_prompt, now=now, check=check)

    def close(self) -> None:
        """End the process, if there is one; it would begin again."""
        if self._process is not None:
            self._process.close()


def load_chat_template(gguf: GGUFFile, vocabulary: Vocabulary) -> ChatTemplate:
    """Return the chat template of a model, or the fallback if it has none. It is not compiled yet.

    Raises:
        FormatError: it is not even text.
    """
    key = Keys.Tokenizer.CHAT_TEMPLATE
    bos_token, eos_token = (
        "" if token is None else vocabulary.tokens[token]
        for token in (vocabulary.special.bos_id, vocabulary.special.eos_id)
    )
    source = gguf.value(key, str) if key in gguf.metadata else None
    return ChatTemplate(source, bos_token=bos_token, eos_token=eos_token)


@contextmanager
def _told() -> Iterator[None]:
    """Say in a sentence what goes wrong."""
    try:
        yield
    except ProgramError as error:
        raise ChatTemplateError(_SENTENCES[error.failure].format(error.text)) from error
    except OSError as error:
        text = f"The process that chat templates run in can't be started: {error.strerror}."
        raise ChatTemplateError(text) from error
