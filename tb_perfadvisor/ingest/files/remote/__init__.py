"""Files in stores that are reached over a network: listed with bounds, fetched once."""
