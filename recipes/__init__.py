"""The built-in recipes, one file for each. ``advisor.recipe.catalog`` finds them as the package ``advisor.recipes``."""
