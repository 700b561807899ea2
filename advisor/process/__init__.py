"""What every process of ours does: streams, signals, the channel to its parent, the process group."""
