"""Training scripts of different habits, as people write them, and tests that observe them without an edit."""
