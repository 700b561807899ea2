"""The step of training or inference, and the settings applied to it. Trials and ``advisor.load`` share this code."""
