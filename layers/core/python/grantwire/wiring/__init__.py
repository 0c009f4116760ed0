"""The composition root: it connects settings, connections and capabilities.

A runtime holds the objects that one function needs. It is in the module with the name of the function, in `routes`,
`workers` or `tasks`, so that a function imports only the code that it uses. Only grant, revoke, extend and query share
one, `routes.entitlements`, and the console needs none. A runtime is built once for each execution environment. On
Lambda that is in the init phase, so that an invalid setting stops the function before it receives a request. Elsewhere
it is at the first call, so that importing a handler needs no environment variables.
"""
