"""Processes, files and folders of this machine. Standard library only."""
