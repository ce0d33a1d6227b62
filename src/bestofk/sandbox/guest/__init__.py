"""What runs inside a worker: standard library only, importable without the rest of bestofk.

A worker is started with this folder's parent on its path and imports it as the top-level package
`guest`, so that neither bestofk nor NumPy is loaded there. Modules here import only each other.
"""
