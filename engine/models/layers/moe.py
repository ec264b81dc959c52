"""Mixture of experts: a router sends each token through a few of many feed-forward networks (arXiv 1701.06538)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.arrays import F32
from engine.kernels import Kernels
from engine.models.config import ExpertsConfig, Gating
from engine.models.layers.ffn import Activation, GatedFFN
from engine.models.layers.linear import Linear
from engine.models.weights import Weights

Chosen = NDArray[np.intp]  # experts by number, (n_tokens, n_expert_used)

_MIN_WEIGHT_SUM = 2.0**-14  # the smallest normal float16: keeps weights finite where all experts are refused


@dataclass(frozen=True)
class SharedExpert:
    """The network that every token goes through as well, with a gate for the whole of it where the file has one."""

    ffn: GatedFFN
    ffn_gate_inp: F32 | None = None  # (n_embd,)

    @classmethod
    def load(cls, weights: Weights, layer: int, *, n_embd: int, n_ff: int, activation: Activation) -> SharedExpert:
        """Take the shared expert's tensors of block `layer`."""
        gate = f"blk.{layer}.ffn_gate_inp_shexp.weight"
        return cls(
            GatedFFN.load(weights, layer, n_embd=n_embd, n_ff=n_ff, activation=activation, suffix="_shexp"),
            weights.array(gate, n_embd) if gate in weights else None,
        )

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        out = self.ffn(kernels, x)
        if self.ffn_gate_inp is not None:
            out = out * _sigmoid(x @ self.ffn_gate_inp)[:, None]
        return out


@dataclass(frozen=True)
class MoE:
    """Gated feed-forward networks of which a router chooses `n_expert_used` for each token."""

    config: ExpertsConfig
    ffn_gate_inp: Linear  # the router: n_embd -> n_expert
    ffn_gate_up_exps: tuple[Linear, ...]  # of each expert: n_embd -> 2 * n_ff
    ffn_down_exps: tuple[Linear, ...]  # of each expert: n_ff -> n_embd
    activation: Activation
    exp_probs_b: F32 | None = None  # (n_expert,), added where experts are chosen, not where they are weighed
    shared: SharedExpert | None = None

    @classmethod
    def load(cls, weights: Weights, layer: int, config: ExpertsConfig, *, n_embd: int, activation: Activation) -> MoE:
        """Take the experts' tensors of block `layer`."""
        block = f"blk.{layer}"
        n_expert, n_ff = config.n_expert, config.n_ff
        rows = {f"{block}.ffn_gate_exps": n_ff, f"{block}.ffn_up_exps": n_ff}
        if f"{block}.ffn_gate_up_exps.weight" in weights:
            rows = {f"{block}.ffn_gate_up_exps": 2 * n_ff}
        exp_probs_b, shared = f"{block}.exp_probs_b.bias", None
        if config.n_ff_shared is not None:
            shared = SharedExpert.load(weights, layer, n_embd=n_embd, n_ff=config.n_ff_shared, activation=activation)
        return cls(
            config=config,
            ffn_gate_inp=Linear.load(weights, {f"{block}.ffn_gate_inp": n_expert}, n_embd),
            ffn_gate_up_exps=Linear.load_experts(weights, rows, n_embd, n_expert),
            ffn_down_exps=Linear.load_experts(weights, {f"{block}.ffn_down_exps": n_embd}, n_ff, n_expert),
            activation=activation,
            exp_probs_b=weights.array(exp_probs_b, n_expert) if exp_probs_b in weights else None,
            shared=shared,
        )

    def __call__(self, kernels: Kernels, x: F32) -> F32:
        out = self.mix(kernels, x, *self.route(kernels, x))
        return out if self.shared is None else out + self.shared(kernels, x)

    def mix(self, kernels: Kernels, x: F32, chosen: Chosen, shares: F32) -> F32:
        """Return what experts make of x, `chosen` and `shares` being as `route` returns them."""
        out = np.zeros_like(x)
        # grouped by expert, so that each of them is one product over all its tokens
        order = np.argsort(chosen, axis=None, kind="stable")
        token = order // self.config.n_expert_used
        share: F32 = shares.reshape(-1)[order][:, None]
        counts = np.bincount(chosen.reshape(-1), minlength=self.config.n_expert)
        ends = np.cumsum(counts)
        for expert in np.flatnonzero(counts).tolist():
            part = slice(ends[expert] - counts[expert], ends[expert])
            out[token[part]] += share[part] * self._expert(kernels, expert, x[token[part]])
        return out

    def route(self, kernels: Kernels, x: F32) -> tuple[Chosen, F32]:
        """Return the experts of each token and their shares in the result, both (n_tokens, n_expert_used)."""
        c = self.config
        scores = self.ffn_gate_inp(kernels, x)  # (n_tokens, n_expert)
        if c.gating is Gating.SOFTMAX:
            scores = _softmax(scores)
        elif c.gating is Gating.SIGMOID:
            scores = _sigmoid(scores)
        preferences = scores if self.exp_probs_b is None else scores + self.exp_probs_b
        chosen = np.argsort(-preferences, axis=1, kind="stable")[:, : c.n_expert_used]
        shares: F32 = np.take_along_axis(scores, chosen, axis=1)
        if c.gating is Gating.SOFTMAX_OF_CHOSEN:
            shares = _softmax(shares)
        if c.normalize:
            shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.float32(_MIN_WEIGHT_SUM))
        return chosen, shares * np.float32(c.scale)

    def _expert(self, kernels: Kernels, expert: int, x: F32) -> F32:
        gate_up = self.ffn_gate_up_exps[expert](kernels, x)
        n_ff = self.config.n_ff
        return self.ffn_down_exps[expert](kernels, self.activation(gate_up[:, :n_ff], gate_up[:, n_ff:]))


def _softmax(x: F32) -> F32:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    out: F32 = exponentials / exponentials.sum(axis=1, keepdims=True)
    return out


def _sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):  # exp overflows to infinity where the quotient is 0 anyway
        out: F32 = np.reciprocal(1 + np.exp(-x))
    return out
