"""The step of training or inference, and how settings change it; trials and ``advisor.load`` share this code."""
