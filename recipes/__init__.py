"""The built-in recipes, one file per optimization. Installed as ``advisor.recipes``; found by ``advisor.catalog``."""
