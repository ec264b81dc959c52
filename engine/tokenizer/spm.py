"""SentencePiece vocabularies of the BPE kind: merge the neighbors whose union has the best score.

Source: SentencePiece (Kudo and Richardson, 2018, arXiv:1808.06226), simplified as in llama.cpp: any two neighbors
whose union is a token may merge, at equal scores the leftmost first, and characters without a token become bytes.
"""

import heapq

import numpy as np

from engine.tokenizer.vocabulary import SPACE, Vocabulary


class SPMEncoder:
    """Turn text into the token ids of an SPM vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        # Dense ranks, the best score first: integers sort and pack where scores would not.
        _, ranks = np.unique(-vocabulary.scores, return_inverse=True)
        self._ranks: list[int] = ranks.tolist()
        unknown = vocabulary.special.unk_id or 0
        self._byte_ids = [vocabulary.ids.get(f"<0x{byte:02X}>", unknown) for byte in range(256)]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens not parsed."""
        ids = []
        for piece in self._merge(text.replace(" ", SPACE)):
            token = self._ids.get(piece)
            if token is None:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            else:
                ids.append(token)
        return ids

    def spell(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return token.replace(SPACE, " ").encode()

    def _merge(self, text: str) -> list[str]:
        pieces = list(text)
        n = len(pieces)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        token_of, ranks = self._ids.get, self._ranks
        # rank * n + left: the piece at `left` and the next make a token of that rank, or did when this was pushed.
        queue = [
            ranks[token] * n + left for left in range(n - 1) if (token := token_of(text[left : left + 2])) is not None
        ]
        heapq.heapify(queue)
        while queue:
            rank, left = divmod(heapq.heappop(queue), n)
            right = after[left]
            if not pieces[left] or right == n:
                continue
            union = pieces[left] + pieces[right]
            token = token_of(union)
            if token is None or ranks[token] != rank:
                continue
            pieces[left], pieces[right] = union, ""
            after[left] = following = after[right]
            if following < n:
                before[following] = left
                token = token_of(union + pieces[following])
                if token is not None:
                    heapq.heappush(queue, ranks[token] * n + left)
            previous = before[left]
            if previous >= 0:
                token = token_of(pieces[previous] + union)
                if token is not None:
                    heapq.heappush(queue, ranks[token] * n + previous)
        return [piece for piece in pieces if piece]
