"""Lambda entry points: translate an event, call one use case, translate its result or error."""
