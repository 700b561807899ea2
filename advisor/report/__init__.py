"""A session's results as the app and the reports show them: pure functions of the session's state."""
