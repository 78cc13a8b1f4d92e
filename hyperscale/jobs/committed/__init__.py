"""What a group commits about jobs: the events of its log and the state they make."""
