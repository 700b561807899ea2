"""Trial processes as their parent sees them: started, listened to, timed out, killed."""
