"""What people type to measure a model, and what comes of it: ``python -m tests.models`` runs a step of each."""
