"""A session: baseline, profile, trials, stack, confirmation, recorded in a journal. No user interface in here."""
