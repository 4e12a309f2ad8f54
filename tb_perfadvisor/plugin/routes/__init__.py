"""The routes below `api/v1/`, one module per resource."""
