"""The events as they travel: protocol buffers, generated from proto/ (`make proto`)."""
