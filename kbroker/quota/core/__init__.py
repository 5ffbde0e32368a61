"""The pure part of client quotas: entities, precedence, sampled rates and token buckets."""
