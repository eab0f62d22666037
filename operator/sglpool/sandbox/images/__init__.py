"""The images of the sandbox: what a container of that reference finds on its PATH.

An image is a folder of executables, laid over the machine's own `/usr`. Nothing is pulled: a reference that is not
listed here does not exist, as for a kubelet.
"""

from sglpool.sandbox.images.image import Image, UnknownImage
from sglpool.sandbox.images.resolve import resolve

__all__ = ["Image", "UnknownImage", "resolve"]
