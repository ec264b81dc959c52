"""The slot file: one conversation as one SQLite database, from its bytes up to typed records. It knows no model."""
