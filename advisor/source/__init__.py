"""Search the user's source code for habits that cost time. The code is never imported or run."""
