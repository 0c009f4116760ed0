"""The HTTP API: an event of API Gateway in, a response out.

`http` is the handler of all routes and the error policy, `request` and `responses` are the two sides of the conversion,
and `routes` has the code of each route. `authorizer` is asked by API Gateway before it calls a route.
"""
