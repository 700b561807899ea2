"""A session without the app: progress lines on standard error, the results on standard output, files as asked for."""
