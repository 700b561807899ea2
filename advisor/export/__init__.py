"""What a session leaves behind: a settings file, a patched config, a Python file, reports. No torch, no UI."""
