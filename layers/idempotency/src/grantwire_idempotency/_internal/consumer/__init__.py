"""Consumers of messages: the events that they parse, the attempts at a message, and what follows the last one."""
