"""A stand-in for the framework that the plug-in joins."""
