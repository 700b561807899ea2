"""Models by the names that people type; ``sessions.py`` runs a session of each."""
