"""An open conversation: its store, its transcript, and the slot in which a model goes on with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.errors import DormouseError
from engine.generate import MessageEnd, Prompt, check_fits
from engine.kernels.kv_types import KV_TYPES
from engine.replay import Replay
from engine.runtime import Runtime
from engine.slot import records
from engine.slot.archive import OVER_BUDGET, Archive
from engine.slot.file.repair import Repaired
from engine.slot.file.slot_file import SlotFile
from engine.slot.file.store import CLOSE_SECONDS, Store
from engine.slot.file.upgrades import OLDER_VERSION
from engine.slot.records import Content, FinishReason, LogEntry, Message, Reason, Receipt, Source
from engine.slot.reuse import Reuse
from engine.slot.slot import Slot
from engine.slot.transcript import Transcript
from engine.tokenizer.prompt import RenderedPrompt
from engine.tokenizer.template_process import Check, no_check
from engine.version import VERSION

_NOT_RECOGNIZED = (
    "What the model remembered of this conversation was stored by an older version of Dormouse, which did not note all "
    "that shapes a model. Whether it fits can't be told, so the model reads the conversation again, once."
)


@dataclass(frozen=True)
class PendingTurn:
    """A turn whose words are on disk: `reply` is empty yet, `path` are the messages before it.

    `added` are the messages that the turn brought about, `before` the one at which the conversation was left.
    """

    transcript: Transcript
    reply: Message
    added: frozenset[int]
    before: int | None

    @property
    def path(self) -> list[Message]:
        """The messages from the first one to the one that is answered."""
        return self.transcript.path(self.reply.parent)

    @property
    def version(self) -> int:
        """How many other replies to the same message there were before."""
        return len(self.transcript.versions(self.reply.id)) - 1


class Conversation:
    """One slot file while it is open.

    The methods that begin something only hand work to the store's thread: they may be called from any thread and
    do not wait. The others belong to the engine's thread.
    """

    def __init__(self, store: Store, path: Path | None) -> None:
        self.store = store
        self.path = path
        self._slot: Slot | None = None
        self._runtime: Runtime | None = None
        self._replay = Replay()
        self._model_id = 0
        self._origins: dict[int, bool] = {}  # see Archive

    # --- beginning turns -------------------------------------------------------------------------------------

    # `runtime` is the model that will answer, if it is known: a message that can't fit is then never stored.

    def begin_send(
        self, text: str, *, system: str | None = None, runtime: Runtime | None = None
    ) -> Future[PendingTurn]:
        """Save a user message behind the current leaf; `system` opens the conversation if it is empty."""
        _check_text(text)

        def begin(file: SlotFile) -> Message:
            parent, now = read_transcript(file).leaf, time.time()
            if parent is None and system:
                parent = file.add_message(None, "system", system, created=now).id
            return file.begin_turn(parent, text, created=now)[1]

        return self._begin(begin, runtime)

    def begin_regenerate(self, *, runtime: Runtime | None = None) -> Future[PendingTurn]:
        """Begin another version of the reply to the last user message."""

        def begin(file: SlotFile) -> Message:
            users = read_transcript(file).user_messages()
            if not users:
                raise DormouseError("There is no message to answer again: the conversation is empty.")
            return file.begin_turn(users[-1].id, None, created=time.time())[1]

        return self._begin(begin, runtime)

    def begin_edit(self, message: int, text: str, *, runtime: Runtime | None = None) -> Future[PendingTurn]:
        """Begin a branch where the user message `message` reads `text`.

        A version that reads so already is taken up again instead of written twice.
        """
        _check_text(text)

        def begin(file: SlotFile) -> Message:
            transcript = read_transcript(file)
            if message not in transcript.messages or transcript.messages[message].role != "user":
                raise DormouseError("The message to edit is not one of yours in this conversation.")
            same = [version.id for version in transcript.versions(message) if version.text == text]
            if same:
                return file.begin_turn(same[-1], None, created=time.time())[1]
            return file.begin_turn(transcript.messages[message].parent, text, created=time.time())[1]

        return self._begin(begin, runtime)

    def _begin(self, begin: Callable[[SlotFile], Message], runtime: Runtime | None) -> Future[PendingTurn]:
        """Have a turn begun in one transaction, which is taken back where the turn can't fit."""

        def begin_fitting(file: SlotFile) -> PendingTurn:
            with file.transaction():
                before = read_transcript(file)
                reply = begin(file)
                transcript = read_transcript(file)
                added = frozenset(transcript.messages.keys() - before.messages.keys())
                turn = PendingTurn(transcript, reply, added, before.leaf)
                if runtime is not None:
                    _check_room(file.contents(), turn, runtime)
            return turn

        return self.store.call(begin_fitting)

    def withdraw(self, turn: PendingTurn) -> Transcript:
        """Take a turn back that found no room after all, and return what is left."""

        def take_back(file: SlotFile) -> Transcript:
            file.withdraw_messages(turn.added, leaf=turn.before)
            return read_transcript(file)

        return self.store.call(take_back).result()

    def cancel_turn(self, begun: Future[PendingTurn]) -> Future[Message]:
        """Mark the reply of a turn that will not begin as cancelled; fails as `begun` does, if that fails."""

        def cancel(file: SlotFile) -> Message:
            reply = begun.result().reply  # done: this was asked of the same thread before
            file.update_reply(reply.id, "", "cancelled")
            return replace(reply, finish_reason="cancelled")

        return self.store.call(cancel)

    def select(self, message: int) -> Future[Transcript]:
        """Make the newest branch through `message` the current one."""

        def change(file: SlotFile) -> Transcript:
            transcript = read_transcript(file)
            if message not in transcript.messages:
                raise DormouseError(f"There is no message {message} in this conversation.")
            file.set_leaf(transcript.newest_leaf(message))
            return read_transcript(file)

        return self.store.call(change)

    # --- in the engine's thread ------------------------------------------------------------------------------

    def slot_for(self, runtime: Runtime) -> Slot:
        """Return the slot in which `runtime` goes on with this conversation.

        Where state could not be stored before, that is tried again.
        """
        if self.store.failure is not None:
            self.store.retry()
            if self._slot is not None:
                self._slot.resume()
        if self._slot is None or self._runtime is not runtime:
            self._slot, self._runtime = self._open_slot(runtime), runtime
        return self._slot

    @property
    def model_id(self) -> int:
        """Under which id the present model's state is stored."""
        return self._model_id

    @property
    def nbytes(self) -> int:
        """Bytes of the live state."""
        return self._slot.memory.nbytes if self._slot else 0

    def unload(self) -> None:
        """Let go of the live state; what is stored stays."""
        self._slot = self._runtime = None

    def put_to_sleep(self, *, reason: str) -> None:
        """Let go of the live state unless something of it could not be stored; note why in the log if that can be."""
        if self._slot is not None and self.store.failure is None:
            with suppress(DormouseError):
                self._slot.log_sleep(reason)
            self.unload()

    def note(self, what: str, error: Exception) -> None:
        """Note in the log that something failed which a turn can do without."""
        entry = LogEntry(time.time(), "failure", {"what": what, "error": f"{type(error).__name__}: {error}"})
        with suppress(DormouseError):
            self.store.post(lambda file: file.append_log(entry), nbytes=1)

    def prompt(self, turn: PendingTurn, runtime: Runtime, *, check: Check = no_check) -> Prompt:
        """Render the messages before a reply into token ids, replaying those that are stored.

        `check` is called while the model's chat template is waited for; what it raises ends that.
        """
        rendered = self._render(turn.path, runtime, add_generation_prompt=True, check=check)
        positions = {**rendered.ends, len(turn.path) - 1: len(rendered.token_ids)}
        ends = (
            MessageEnd(positions[place], message.id, "prompt_end" if message.role == "user" else "message_end")
            for place, message in enumerate(turn.path)
            if place in positions
        )
        return Prompt(rendered.token_ids, tuple(ends))

    def wake(self, runtime: Runtime, *, check: Check = no_check) -> tuple[Reuse, Source, int]:
        """Bring the state of the current branch into memory; `check` as for `prompt`.

        Returns what of it could be reused, where that came from, and how many tokens the branch has. `check` may raise
        Cancelled: what was live is live still.
        """
        path = self.store.call(read_transcript).result().path()
        slot = self.slot_for(runtime)
        token_ids = np.empty(0, np.int32)
        if path:
            rendered = self._render(path, runtime, add_generation_prompt=False, check=check)
            token_ids = rendered.token_ids[: rendered.ends.get(len(path) - 1)]
        while True:
            reuse = slot.plan(token_ids)
            source = slot.source(reuse)
            if slot.wake(reuse, between_layers=check):
                return reuse, source, len(token_ids)

    def _render(
        self, path: Sequence[Message], runtime: Runtime, *, add_generation_prompt: bool, check: Check
    ) -> RenderedPrompt:
        def read(file: SlotFile) -> tuple[dict[int, Message], list[Content]]:
            return {message.id: message for message in file.messages()}, file.contents()

        messages, contents = self.store.call(read).result()
        # a turn may have begun while an earlier reply was being written
        now = [messages.get(message.id, message) for message in path]
        rendered, new = self._replay.render(
            now, contents, runtime, add_generation_prompt=add_generation_prompt, check=check
        )
        for content in new:
            self._put_content(content)
        return rendered

    def save_partial(self, reply: Message, text: str) -> None:
        """Save what there is of a reply so far."""
        self.store.post(lambda file: file.update_reply(reply.id, text, "pending"), nbytes=len(text))

    def finish(
        self,
        reply: Message,
        *,
        text: str,
        finish_reason: FinishReason,
        token_ids: Sequence[int] = (),
        receipt: Receipt | None = None,
    ) -> Message:
        """Save a reply as it ended, with its ids and its receipt; return it.

        The text is saved by itself: what is wrong with the rest of the file must not cost it.
        """
        digest = self._runtime.tokenizer.digest if self._runtime else ""

        def save_account(file: SlotFile) -> None:
            with file.transaction():
                if digest:
                    file.put_content(Content(reply.id, digest, np.array(token_ids, np.int32)))
                if receipt is not None:
                    file.put_receipt(receipt)

        self.store.call(SlotFile.update_reply, reply.id, text, finish_reason).result()
        try:
            self.store.call(save_account).result()
        except DormouseError as error:
            self.store.tell(f"The reply is saved, but not what it cost. {error}")
        return Message(reply.id, reply.parent, reply.role, text, reply.created, finish_reason)

    def save_as(self, path: Path) -> None:
        """Write a whole copy to `path`, replacing what is there, and go on in it."""
        without_state = self.store.call(lambda file: file.has_losses).result()
        self.store.move(path).result()
        self.path = path
        if without_state:
            self.unload()

    def repair(self) -> Repaired | None:
        """Put a repaired file in the place of this one and go on in that; None if there was nothing to repair."""
        repaired = self.store.repair().result()
        self.unload()
        return repaired

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write everything and let go of the file; raises `SlotFileError` if that takes longer."""
        self.unload()
        self.store.close(seconds)

    def _open_slot(self, runtime: Runtime) -> Slot:
        identity = runtime.identity()

        def register(file: SlotFile) -> tuple[int, Reason | None, int]:
            if file.manifest().get("engine_version") != VERSION:
                file.set_manifest("engine_version", VERSION)
            if not recognize(file, runtime):
                self.store.tell(_NOT_RECOGNIZED)
            others = [model for model in file.models() if file.segments(model.id)]
            model, receipts = file.put_model(identity), file.receipts()
            n_seen = receipts[-1].cache_n + receipts[-1].prompt_n if receipts else 0
            return model.id, _why_lost(file, model, others), n_seen

        self._model_id, loss, n_seen = self.store.call(register).result()
        slot = Slot(
            runtime.model,
            Archive(self.store, self._model_id, origins=self._origins),
            kv_type=KV_TYPES[identity.kv_type],
            disk_budget=runtime.settings.disk_budget,
        )
        if loss is not None:
            slot.explain_loss(loss, n_seen)
        return slot

    def _put_content(self, content: Content) -> None:
        self.store.post(lambda file: file.put_content(content), nbytes=content.token_ids.nbytes)


def _check_room(contents: Sequence[Content], turn: PendingTurn, runtime: Runtime) -> None:
    """Raise ContextFullError where a turn can't fit, whatever the template makes of it.

    What people wrote is counted: templates add to that, and leave none of it out. The template itself is not asked, as
    it is a program of the model's maker, and nothing may keep words from being saved. What does not fit by what it adds
    is found out when the turn is answered, and taken back then.
    """
    ours = [message for message in turn.path if message.role in ("user", "system")]
    if sum(len(message.text.encode()) + 1 for message in ours) < runtime.n_ctx:  # a token has a byte at least
        return
    digest = runtime.tokenizer.digest
    stored = {content.message: len(content.token_ids) for content in contents if content.tokenizer == digest}
    n = sum(
        stored[message.id]
        if message.id in stored
        else len(runtime.tokenizer.encode(message.text.strip(), parse_special=False))
        for message in ours
    )
    check_fits(n, runtime.n_ctx, at_least=True)


def read_transcript(file: SlotFile) -> Transcript:
    """Return the conversation's messages as a tree; where the stored leaf is none of them, the newest is taken."""
    messages = file.messages()
    leaf = file.leaf()
    if messages and leaf not in {message.id for message in messages}:
        leaf = messages[-1].id
    return Transcript(messages, leaf)


def known_models(file: SlotFile) -> tuple[records.ModelIdentity, ...]:
    """Return the models that answered in a conversation or whose state it holds."""
    answered = {receipt.model for receipt in file.receipts()}
    return tuple(model for model in file.models() if model.id in answered or file.segments(model.id))


def _why_lost(file: SlotFile, model: records.ModelIdentity, others: Sequence[records.ModelIdentity]) -> Reason | None:
    """Return why a model finds less state than there was once, None if it should find all; `others` have some."""
    if file.state_damage:
        return "damaged"
    turns = sorted(receipt.created for receipt in file.receipts())
    answered, before = (turns[-1] if turns else 0.0), (turns[-2] if len(turns) > 1 else 0.0)
    for entry in file.log():
        if entry.created >= before and entry.event == OVER_BUDGET:
            return "state_dropped"
        if entry.created >= answered and entry.event in ("repair", "put_aside"):  # and nothing was computed since
            return "state_dropped" if entry.detail.get("reason") == OLDER_VERSION else "damaged"
    if file.segments(model.id):
        return None
    if not others:
        return "state_dropped"
    return "other_kv_type" if any(model.fingerprint == other.fingerprint for other in others) else "other_model"


def recognize(file: SlotFile, runtime: Runtime) -> bool:
    """Have a model find the states that files before layout 3 hold of it under a fingerprint of its tensors alone.

    They are its states if the model's file has not changed since the first of them was stored. Where that can't be
    told, the metadata may have been other ones: the states are dropped, and False is returned.
    """
    known = [model for model in file.models() if model.fingerprint == runtime.tensor_fingerprint]
    recognized = True
    for model in known:
        created = [c.created for c in file.checkpoints(model.id)]
        created += [r.created for r in file.receipts() if r.model == model.id]
        if model.path == str(runtime.path) and created and runtime.file_changed < min(created):
            file.recognize_model(model.id, runtime.fingerprint)
        elif file.segments(model.id):
            file.drop_state(model.id)
            recognized = False
    return recognized


def _check_text(text: str) -> None:
    if not text.strip():
        raise DormouseError("The message is empty: there is nothing to send.")
