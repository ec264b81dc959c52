"""What is in a slot file, for people and for programs. No model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.slot.file.slot_file import SlotFile
from engine.slot.records import Checkpoint, ModelIdentity, Segment
from engine.slot.segments import SegmentTree


def inspect(path: Path | str) -> dict[str, Any]:
    """Summarize a slot file as a JSON object; only what a crash left unfinished in it is taken back.

    Raises `SlotFileError`.
    """
    with SlotFile.open(path, read_only=True) as slot_file:
        messages = slot_file.messages()
        receipts = slot_file.receipts()
        return {
            "path": str(path),
            "messages": {
                "count": len(messages),
                "by_role": dict(Counter(message.role for message in messages)),
                "damaged": sum(message.damaged for message in messages),
                "leaf": slot_file.leaf(),
            },
            "models": [_model(slot_file, model) for model in slot_file.models()],
            "receipts": {
                "count": len(receipts),
                "prompt_n": sum(receipt.prompt_n for receipt in receipts),
                "cache_n": sum(receipt.cache_n for receipt in receipts),
                "predicted_n": sum(receipt.predicted_n for receipt in receipts),
            },
            "bytes": slot_file.sizes(),
            "damage": slot_file.damage,
            "state_damage": slot_file.state_damage,
        }


def render(summary: dict[str, Any]) -> str:
    """Lay out what `inspect` returned for people, in lines."""
    messages, receipts, sizes = summary["messages"], summary["receipts"], summary["bytes"]
    roles = ", ".join(f"{count} {role}" for role, count in messages["by_role"].items())
    lines = [
        summary["path"],
        f"messages     {messages['count']}" + (f" ({roles})" if roles else ""),
        f"replies      {receipts['count']}: {receipts['cache_n']} tokens reused, {receipts['prompt_n']} read, "
        f"{receipts['predicted_n']} written",
    ]
    for model in summary["models"]:
        lines.append(f"model        {model['name']} ({model['architecture']}, K/V {model['kv_type']})")
        lines.append(f"  tokens       {model['tokens']} in {model['segments']} segments")
        lines += [
            f"  rows         {rows['tokens']} {part}, {_megabytes(rows['bytes'])}"
            for part, rows in model["rows"].items()
        ]
        kept = model["checkpoint_bytes"]
        lines.append(
            f"  checkpoints  {model['checkpoints']}, {_megabytes(kept['stored'])} with their windows; "
            f"{_megabytes(kept['separate'])} as separate copies"
        )
    lines += [f"{name:<12} {_megabytes(nbytes)}" for name, nbytes in sizes.items()]
    return "\n".join([*lines, *summary["damage"], *summary["state_damage"]])


def _model(slot_file: SlotFile, model: ModelIdentity) -> dict[str, Any]:
    segments = slot_file.segments(model.id)
    checkpoints = [checkpoint for checkpoint in slot_file.checkpoints(model.id) if checkpoint.nbytes]
    rows: dict[str, Counter[str]] = {}
    for span in slot_file.rows_index(model.id):
        counts = {"spans": 1, "tokens": span.hi - span.lo, "bytes": span.nbytes}
        rows.setdefault(span.part, Counter()).update(counts)
    return {
        "name": model.name,
        "architecture": model.architecture,
        "fingerprint": model.fingerprint,
        "kv_type": model.kv_type,
        "kernels": model.kernels,
        "segments": len(segments),
        "tokens": sum(len(segment.token_ids) for segment in segments.values()),
        "rows": {part: dict(counts) for part, counts in rows.items()},
        "checkpoints": len(checkpoints),
        "checkpoint_bytes": _checkpoint_nbytes(model, segments, checkpoints, rows.get("sliding_window")),
    }


def _checkpoint_nbytes(
    model: ModelIdentity,
    segments: Mapping[int, Segment],
    checkpoints: Sequence[Checkpoint],
    rows: Mapping[str, int] | None,
) -> dict[str, int]:
    """Return what checkpoints take with the rows of their sliding windows, and would take if each had its own."""
    payload = sum(checkpoint.nbytes for checkpoint in checkpoints)
    stored = separate = payload
    if rows:
        tree, n_swa = SegmentTree(segments.values()), _n_swa(model)
        row_nbytes = rows["bytes"] // rows["tokens"]
        stored += rows["bytes"]
        separate += row_nbytes * sum(min(n_swa, tree.n_tokens(checkpoint.cursor)) for checkpoint in checkpoints)
    return {"stored": stored, "separate": separate}


def _n_swa(model: ModelIdentity) -> int:
    layers: Any = model.config.get("layers", [])
    return max((need.get("n_swa") or 0 for needs in layers for need in needs), default=0)


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.2f} MB"
