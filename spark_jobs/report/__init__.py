"""What a person and a script get from a run: first screen, report.json, findings.jsonl, report.html."""
