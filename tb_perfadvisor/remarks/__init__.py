"""What users say about findings: kept in their data directory, shown with reports."""
