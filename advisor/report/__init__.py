"""What a session found, as the app and the reports show it: pure functions of its state."""
