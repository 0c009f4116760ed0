"""Metrics: `interface` defines what jobs and consumers report, and writes it for CloudWatch."""
