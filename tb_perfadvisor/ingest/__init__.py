"""From files to traces: discovery, loading, and one reader per format."""
