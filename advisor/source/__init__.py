"""The user's source, read for habits; never imported, never run."""
