"""The instrumented pass: where a step's time goes, and what the machine can do."""
