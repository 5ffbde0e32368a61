"""The main job on one machine: two clusters, real data, a mirror, an audit; then damage, named exactly."""
