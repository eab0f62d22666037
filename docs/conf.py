"""How Sphinx builds the documentation site. Not a module of the product."""

from __future__ import annotations

from importlib.metadata import version as installed

project = "sglpool"
author = "The sglpool authors"
project_copyright = "The sglpool authors, Apache-2.0"
release = installed("sglpool")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
# Headings that other pages may link to.
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"sglpool {release}"
html_show_sphinx = False
html_copy_source = False
exclude_patterns = ["_build"]

# A link that leads nowhere fails the build (the Makefile passes -W). The net is not asked: builds need none.
nitpicky = True
linkcheck_ignore = [r"https?://"]
