"""The terminal app. It reads a session's events and never imports torch."""
