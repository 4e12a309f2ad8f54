"""What each recording of a run changed."""
