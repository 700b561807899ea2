"""Config files as text: values looked up, replaced and added, every other character as it was. And their words."""
