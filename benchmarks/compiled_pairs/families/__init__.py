"""Programs of ten families, as public code writes them; none of them was written for a rule."""
