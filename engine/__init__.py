"""Dormouse's inference engine: local language models whose conversations sleep and wake.

Usable alone, without any window. The floors, from the ground up; each imports only floors below it:
`formats`, `kernels`, `quants`, `tokenizer`, `memory`, `models`, `slot`, `generate`, `session`, `cli`.
"""
