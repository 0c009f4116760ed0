"""The commands: their options, and how their results are printed."""
