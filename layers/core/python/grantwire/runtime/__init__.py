"""The composition root: it connects settings, connections and capabilities.

A runtime holds the objects that one function, or a family of functions, needs. Each runtime has its own module, so that
a function imports only the code that it uses. A runtime is built once for each execution environment. On Lambda that is
in the init phase, so that an invalid setting stops the function before it receives a request. Elsewhere it is at the
first call, so that importing a handler needs no environment variables.
"""
