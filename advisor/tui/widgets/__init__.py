"""Widgets that more than one view, or none in particular, could use."""
