"""Files in remote stores: listed within limits, downloaded once."""
