"""The files of a session: a settings file, a patched config, a Python file, reports. No torch, no UI."""
