"""The five views, one file each."""
