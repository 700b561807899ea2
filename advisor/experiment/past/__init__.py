"""What outlives a session: its journal, its config, and what the next session takes over."""
