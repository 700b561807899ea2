"""Models by the names that people type; ``python -m tests.models`` runs a step of each."""
