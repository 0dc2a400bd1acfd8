"""The ground that everything stands on; imports nothing of ours but itself."""
