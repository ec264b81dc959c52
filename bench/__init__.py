"""Dormouse's benchmarks: how fast it is, alone and beside llama.cpp, what sleep costs, how long the window makes wait.

They stand above app and engine, neither of which knows them: `dormouse-cli bench` finds `bench.command` by its name.
"""
