"""From the messages of a conversation to token ids: what a message was made of once is replayed, never made again.

Replayed ids must say what the message says. A file may come from anybody, and nobody shall read one thing while the
model is told another: ids that say something else, or are no ids at all, are left, and the message is tokenized anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from engine.arrays import TokenIds
from engine.runtime import Runtime
from engine.slot.records import Content, Message
from engine.tokenizer.prompt import RenderedPrompt, TemplateMessage
from engine.tokenizer.template_process import Check, no_check


class Replay:
    """Renders one conversation; what was found to say the right thing is not looked at again."""

    def __init__(self) -> None:
        self._found_right: set[tuple[str, int]] = set()  # digests of tokenizers, and messages

    def render(
        self,
        path: Sequence[Message],
        contents: Sequence[Content],
        runtime: Runtime,
        *,
        add_generation_prompt: bool,
        check: Check = no_check,
    ) -> tuple[RenderedPrompt, list[Content]]:
        """Render messages into token ids, replaying `contents`; return those that were not among them, too.

        `check` is called while the model's chat template is waited for; what it raises ends that.
        """
        # a template that writes the date must not change the beginning of a conversation from day to day
        began = next((message.created for message in path if not message.damaged), time.time())
        builder = runtime.prompt_builder(now=datetime.fromtimestamp(began), check=check)
        digest = runtime.tokenizer.digest
        stored = {content.message: content.token_ids for content in contents if content.tokenizer == digest}
        messages, new = [], []
        for message in path:
            token_ids = stored.get(message.id)
            if token_ids is None or not self._says_it(token_ids, message, runtime):
                anew = builder.encode_content(message.role, message.text)
                if token_ids is None or not np.array_equal(token_ids, anew):  # no vocabulary can say everything
                    new.append(Content(message.id, digest, anew))
                token_ids = anew
            self._found_right.add((digest, message.id))
            messages.append(TemplateMessage(message.role, token_ids, message.text))
        return builder.build(messages, add_generation_prompt=add_generation_prompt), new

    def _says_it(self, token_ids: TokenIds, message: Message, runtime: Runtime) -> bool:
        if (runtime.tokenizer.digest, message.id) in self._found_right:
            return True
        if int(token_ids.min(initial=0)) < 0 or int(token_ids.max(initial=0)) >= runtime.model.config.n_vocab:
            return False
        said, shown = runtime.tokenizer.decode(token_ids.tolist()).strip(), message.text.strip()
        # the end of a reply that was stopped may still have become a character, or a text that ends replies
        held = 1 + max(map(len, runtime.template.stop_texts), default=0) if message.role == "assistant" else 0
        return said.startswith(shown) and len(said) - len(shown) <= held
