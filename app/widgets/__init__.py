"""Widgets that know neither the engine nor the application's state."""
