"""Files and folders: the user's paths and configs, the state folder, temporary files."""
