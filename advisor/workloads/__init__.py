"""From a target string to a workload: the user's code is loaded and brought into one shape."""
