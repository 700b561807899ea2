"""Python code, read and written: places in the user's own files, and settings as code."""
