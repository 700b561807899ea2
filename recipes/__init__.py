"""The built-in recipes, one file per optimization; ``advisor.recipe.catalog`` finds them as ``advisor.recipes``."""
