"""How the outside calls in: an event is translated, one use case is called, its result or error is translated back."""
