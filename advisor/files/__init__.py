"""Files and folders: the user's paths and configs, the state folder, what is temporary."""
