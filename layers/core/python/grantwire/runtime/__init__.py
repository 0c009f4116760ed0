"""The composition root: the only place where settings, connections and capabilities meet.

A runtime is what one function, or one family of them, needs, and no more; each has a module of its own, so that a
function imports only its own. It is built once for each execution environment: in the init phase on Lambda, so that a
bad setting stops the function before it takes a request, and at the first call elsewhere, so that importing a handler
needs no environment.
"""
