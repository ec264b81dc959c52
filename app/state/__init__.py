"""Observable state: what the window shows, apart from any widget."""
