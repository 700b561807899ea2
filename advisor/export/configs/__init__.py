"""Config files as text: find, replace and add values without changing other text; and the words of frameworks."""
