"""Trial processes, seen from their parent: started, listened to, timed out, killed."""
