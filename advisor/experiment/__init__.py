"""A session: baseline, profile, trials, stack and confirmation, recorded in a journal. No user interface code."""
