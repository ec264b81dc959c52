"""What the next turn will find and what it will cost, said before it happens."""

from __future__ import annotations

from app.state.conversation_state import ConversationState
from app.state.progress import prefill_seconds
from engine.slot.reuse import IN_WORDS, SURPRISING


def why(reason: str) -> str:
    """Return the reason why not more was reused in words; empty where nothing more could be."""
    return "" if reason in ("none", "new_chat") else IN_WORDS.get(reason, reason)


def outlook(conversation: ConversationState) -> str:
    """Return the sentence about a conversation's next or beginning turn; empty when there is nothing to say."""
    if (woken := conversation.woken) is not None:
        if woken.prompt_n and woken.reason != "none":
            cost = _cost(woken.prompt_n, conversation)
            return f"The next message makes the model read {cost} again: {why(woken.reason)}."
        if woken.source == "restored":
            return f"Awake: {woken.cache_n:,} tokens restored from the file, nothing to read again."
    started = conversation.prefill_started
    if started is not None and started.prompt_n and started.reason in SURPRISING:
        return f"Reading {_cost(started.prompt_n, conversation)}: {why(started.reason)}."
    return ""


def spoken_seconds(seconds: float) -> str:
    """Return a duration in words: “8 s”, “2 min 10 s”, “1 h 5 min”."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _cost(prompt_n: int, conversation: ConversationState) -> str:
    tokens = f"{prompt_n:,} token{'s' * (prompt_n != 1)}"
    seconds = prefill_seconds(prompt_n, conversation.receipts.values())
    return tokens if seconds is None else f"{tokens} (about {spoken_seconds(seconds)})"
