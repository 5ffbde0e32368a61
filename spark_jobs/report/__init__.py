"""The outputs of a run: first screen, report.json, findings.jsonl, report.html."""
