"""How Sphinx builds the guide and the API pages: `make docs`, warnings as errors.

Docstrings are in NumPy style, with single backquotes around code.
"""

import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before autodoc imports TensorFlow

import checkmate_tf

project = "checkmate_tf"
release = version = checkmate_tf.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["_build"]

default_role = "code"
numpydoc_show_class_members = False  # autodoc does, where :members: asks for it
autodoc_typehints = "none"  # docstrings say what is meant
autodoc_member_order = "bysource"
myst_heading_anchors = 3

html_theme = "furo"
html_title = "checkmate_tf"
html_copy_source = False


def _name_what_lies_elsewhere(app, docname, source):
    """Links out of this folder lead somewhere in a checkout, and nowhere from the pages: name the file instead."""
    source[0] = re.sub(r"(?<!!)\[([^\[\]]+)\]\(\.\./([^()#\s]+)[^()\s]*\)", r"\1 (`\2`)", source[0])


def setup(app):
    app.connect("source-read", _name_what_lies_elsewhere)
