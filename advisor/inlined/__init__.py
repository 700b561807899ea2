"""What recipes do to models and datasets: modules that import nothing of this package, for exported code holds them."""
