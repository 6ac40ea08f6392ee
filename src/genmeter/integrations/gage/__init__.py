"""genmeter as a judge, as metrics and as a summary generator of GAGE; see docs/gage.md.

``judge``, ``metrics``, ``summary`` and ``adapter`` may be named by import path; ``registered`` belongs to the manifests
and to nobody else, since the framework allows registration only while it discovers them.
"""
