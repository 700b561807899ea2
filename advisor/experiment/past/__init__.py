"""Data that outlives a session: its journal, its config, hints for the next session."""
