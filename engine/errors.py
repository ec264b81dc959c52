"""The errors that Dormouse tells people about.

Every failure with a cause outside the program (a file, a limit, a wish that can't be met) is a
`DormouseError` whose text is one sentence in the user's words. Anything else that is raised is a bug.
"""

_MOST_LETTERS = 60


class DormouseError(Exception):
    """A failure that is told to the user as it stands: one clear sentence, no code words."""


class FormatError(DormouseError):
    """A file is damaged, cut short, or not of the kind it was opened as."""


class UnsupportedError(DormouseError):
    """A file is whole but asks for something that Dormouse does not have; the text names it."""


class SlotFileError(DormouseError):
    """A slot file can't be opened, read or written."""


class SlotBusyError(SlotFileError):
    """The slot file is open in another process."""


class ContextFullError(DormouseError):
    """A prompt does not fit into the context; nothing was evaluated."""


class UnknownTokenError(DormouseError):
    """A token id is not one of the model's; nothing was evaluated."""

    def __init__(self, token_id: int, n_vocab: int) -> None:
        super().__init__(
            f"The conversation has the token {token_id}, which the model doesn't know: it has {n_vocab:,} tokens. "
            "What was stored of the conversation may be damaged."
        )


class NotFiniteError(DormouseError):
    """A model computed infinity or NaN; nothing of that is kept."""

    def __init__(self) -> None:
        super().__init__(
            "The model computes values that are not numbers: its file may be damaged. "
            "Fetch it again, or load another one."
        )


def excerpt(text: str) -> str:
    """Return a text out of a file, quoted as a sentence can have it: in one line, and not longer than that."""
    return repr(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…")
