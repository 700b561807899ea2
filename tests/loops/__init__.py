"""Small training loops as people write them, each plain and with settings applied."""
