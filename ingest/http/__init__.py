"""HTTP: connections, routes, wire models, console. Nothing below imports it. From outside: `app`,
`routes`.
"""
