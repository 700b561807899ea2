"""The basic duties of each process: streams, signals, the channel to its parent, the process group."""
