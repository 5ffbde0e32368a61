"""Administration: topics, configs, groups and offsets; one result per name."""
