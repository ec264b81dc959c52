"""Dormouse's window: a Qt client of the engine's session."""
