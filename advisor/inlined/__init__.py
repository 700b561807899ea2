"""The changes that recipes make to models and datasets. They are exported as code, so they stand alone."""
