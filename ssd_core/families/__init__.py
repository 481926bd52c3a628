"""Backbone families: picture models, their layouts and their pixels. ``loaders`` finds the one of a folder."""
