"""Administration: topics, configs, groups and offsets; one answer per name asked about."""
