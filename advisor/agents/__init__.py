"""What coding agents talk to."""
