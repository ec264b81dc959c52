"""Conversations in the engine: what is live, what sleeps in the slot file, and how much can be reused."""
