"""The duties of every process: streams, signals, the channel to its parent, the process group."""
