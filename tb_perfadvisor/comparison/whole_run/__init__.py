"""What the scalars of a run add to the reports of its profiles, and the view of the whole run."""
