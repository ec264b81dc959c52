"""Kernels written in Python and compiled by LLVM for the processor at hand.

`ir` is the language they are written in, `isa` what they need of a processor, `team` how threads share their work,
`library` how they are compiled and kept. The rest are the kernels: `matmul` (with `bricks`, `activations`),
`float_matmul`, `attention` (with `product`), `elementwise`; for recurrent layers `short_conv`, `delta_net` and `ssd`
(with `chunks`), `selective_scan`, `wkv7`. `kernels` is what the engine sees, `recurrent` a part of it.
"""
