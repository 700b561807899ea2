"""Changes of models and datasets by recipes. Exported code contains these modules: they import nothing of ours."""
