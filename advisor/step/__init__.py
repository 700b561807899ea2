"""What settings do to a step, and the step itself: the one implementation behind trials and ``advisor.load``."""
